"use strict";

// Lists the operations of openapi.json, which this agent serves. All text goes in as text.

function element(tag, text, parent) {
  const made = document.createElement(tag);
  made.textContent = text;
  parent.append(made);
  return made;
}

function schemaOf(content, schemas) {
  const schema = content?.["application/json"]?.schema;
  return schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
}

function typeOf(property) {
  const kinds = property.anyOf ?? [property];
  return kinds
    .map((kind) => (kind.type === "array" ? `list of ${typeOf(kind.items)}` : (kind.$ref?.split("/").pop() ?? kind.type)))
    .filter((kind) => kind && kind !== "null")
    .join(" or ");
}

function showFields(schema, parent) {
  const fields = Object.entries(schema?.properties ?? {});
  if (!fields.length) return;
  const list = element("ul", "", parent);
  for (const [name, property] of fields) {
    const item = element("li", "", list);
    element("code", name, item);
    const what = [typeOf(property), property.description].filter(Boolean).join("; ");
    item.append(`: ${what}`);
  }
}

async function show() {
  const document_ = await (await fetch("openapi.json")).json();
  const list = document.getElementById("operations");
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const section = element("section", "", list);
      element("h2", `${method.toUpperCase()} ${path}`, section);
      element("p", operation.description ?? operation.summary, section);
      for (const parameter of operation.parameters ?? []) {
        element("p", `?${parameter.name}: ${parameter.schema.type}`, section);
      }
      showFields(schemaOf(operation.requestBody?.content, document_.components.schemas), section);
    }
  }
}

show().catch((error) => {
  document.getElementById("operations").textContent = `The description can't be read: ${error.message}`;
});
