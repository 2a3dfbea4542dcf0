// Elements, lists, tables and plots. All text goes in as text (textContent), never as markup. What is shown is
// updated in place, so that focus, selections and open dialogs stay.

export const byId = (id) => document.getElementById(id);

export function put(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export const set = (id, text) => put(byId(id), text);

export function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Make the children of an element those of `items`, in order; `update(child, item)` fills in a child.
export function keyed(id, items, keyOf, create, update) {
  const parent = byId(id);
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = known.get(key);
    known.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const gone of known.values()) gone.remove();
}

// The rows of a table's body; columns that its head shows as numbers are aligned as such.
export function rows(id, items, keyOf, textsOf) {
  const heads = [...byId(id).closest("table").querySelectorAll("th")];
  keyed(id, items, keyOf, () => element("tr"), (row, item) => {
    textsOf(item).forEach((text, n) => put(row.children[n] ?? row.appendChild(element("td", "", heads[n].className)), text));
  });
}

export const list = (id, texts) =>
  keyed(id, texts.map((text, n) => ({ text, n })), (item) => item.n, () => element("li"), (item, { text }) => put(item, text));

const WIDTH = 600;
const HEIGHT = 120;
const MARGIN = 5;
const HOUR = 3600;

// Draw the course of one figure in the hour before `end` (seconds); where it is not known, the line is broken.
// Returns the value at its top: the largest, and not below `least`, so that small changes look small.
export function plot(id, points, valueOf, end, least) {
  const most = Math.max(least, ...points.map((point) => valueOf(point) ?? 0));
  let drawing = false;
  const steps = [];
  for (const point of points) {
    const value = valueOf(point);
    if (value != null) {
      const x = WIDTH - ((end - point.at) / HOUR) * WIDTH;
      const y = HEIGHT - MARGIN - (value / most) * (HEIGHT - 2 * MARGIN);
      steps.push(`${drawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`);
    }
    drawing = value != null;
  }
  byId(id).firstElementChild.setAttribute("d", steps.join(""));
  return most;
}
