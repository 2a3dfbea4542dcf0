// Runs the status page's script against a real agent, over a document that is just enough for it.
// Usage: node page_in_node.mjs URL; then commands on standard input, one line each:
//   click ID          click the button with this id
//   click VERB DUMP   click a dump's button
//   text ID           print the text of an element, as JSON
// Whatever the script throws, logs as an error, or writes as markup ends the process with status 1.

import { createInterface } from "node:readline";

const url = process.argv[2];

function fail(error) {
  process.stderr.write(`${error?.stack ?? error}\n`);
  process.exit(1);
}

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], parent: null, own: "", dataset: {}, attributes: {}, listeners: {} });
    this.hidden = false;
  }

  get textContent() { return this.own + this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { this.children = []; this.own = String(text); }
  set innerHTML(_) { fail("markup is written"); }
  get firstElementChild() { return this.children[0] ?? null; }
  get lastElementChild() { return this.children.at(-1) ?? null; }
  get nextElementSibling() { return this.parent?.children[this.parent.children.indexOf(this) + 1] ?? null; }

  append(...added) {
    for (const one of added) if (one instanceof Element) this.insertBefore(one, null);
  }

  appendChild(child) { return this.insertBefore(child, null); }

  insertBefore(child, place) {
    child.remove();
    this.children.splice(place ? this.children.indexOf(place) : this.children.length, 0, child);
    child.parent = this;
    return child;
  }

  remove() {
    if (this.parent) this.parent.children = this.parent.children.filter((child) => child !== this);
    this.parent = null;
  }

  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  querySelectorAll(tag) { return this.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...child.querySelectorAll(tag)]); }
  click() { return this.listeners.click(); }
}

const page = await (await fetch(`${url}/`)).text();
const byId = Object.fromEntries([...page.matchAll(/<(\w+)[^>]*? id="([\w-]+)"/g)].map(([, tag, id]) => [id, new Element(tag)]));
const ask = globalThis.fetch;
Object.assign(globalThis, {
  document: {
    title: "", hidden: false,
    getElementById: (id) => byId[id] ?? fail(`no element ${id}`),
    createElement: (tag) => new Element(tag),
  },
  sessionStorage: { getItem: () => null, setItem: () => undefined },
  confirm: () => true,
  fetch: (path, options) => ask(`${url}/${path}`, options),
});
console.error = fail;
process.on("unhandledRejection", fail);
process.on("uncaughtException", fail);

const script = await (await ask(`${url}/page.js`)).text();
new Function(script)();

for await (const line of createInterface({ input: process.stdin })) {
  const [what, name, dump] = line.split(" ");
  if (what === "text") {
    process.stdout.write(`${JSON.stringify(byId[name].textContent)}\n`);
  } else if (dump) {
    const item = byId.dumps.children.find((child) => child.dataset.key === dump) ?? fail(`no dump ${dump}`);
    const button = item.querySelectorAll("button").find((each) => each.dataset.verb === name);
    if (button.hidden) fail(`${name} of ${dump} is hidden`);
    await button.click();
  } else {
    await byId[name].click();
  }
}
process.exit(0);
