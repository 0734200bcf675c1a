"use strict";
// Tables that are sorted by a click on a column's head: up, down, and as the daemon tells them.

const orders = new Map();   // table -> {column, down}

// A cell; `value` is what it is sorted by where its text will not do.
function cell(text, value, className = "") {
  const made = tell("td", text, className);
  if (value !== undefined) made.dataset.value = value;
  return made;
}

// A name that may be long: its tail is what tells it from others.
function named(content, title) {
  const made = tell("td", "", "name"), inner = document.createElement("bdi");
  inner.dir = "ltr";
  inner.append(...[content].flat());
  made.title = title;
  made.append(inner);
  return made;
}

const valueOf = (line, column) => line.children[column].dataset.value ?? line.children[column].textContent;

function compared(one, other) {
  if (!one || !other) return one ? -1 : other ? 1 : 0;   // what is empty comes last, up or down
  const [a, b] = [Number(one), Number(other)];
  return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other, "en", { numeric: true }) : a - b;
}

function inOrder(table, lines) {
  const order = orders.get(table.id);
  if (!order) return lines;
  const sign = order.down ? -1 : 1;
  return [...lines].sort((one, other) => {
    const [a, b] = [valueOf(one, order.column), valueOf(other, order.column)];
    return a && b ? sign * compared(a, b) : compared(a, b);
  });
}

// Shows these rows. Who is there already stays where it can: what has the keyboard's focus keeps it.
function arrange(body, lines) {
  const table = body.closest("table");
  body.told = lines;
  const wanted = inOrder(table, lines), kept = new Set(wanted);
  for (const line of [...body.children]) if (!kept.has(line)) line.remove();
  wanted.forEach((line, index) => {
    if (body.children[index] !== line) body.insertBefore(line, body.children[index] ?? null);
  });
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  body.told ??= [...body.rows];
  const mark = () => heads.forEach((head, column) => {
    const order = orders.get(table.id);
    head.setAttribute("aria-sort", order?.column !== column ? "none" : order.down ? "descending" : "ascending");
  });
  heads.forEach((head, column) => {
    const button = tell("button", head.textContent, "sort");
    button.type = "button";
    button.addEventListener("click", () => {
      const order = orders.get(table.id);
      if (order?.column !== column) orders.set(table.id, { column, down: false });
      else if (!order.down) order.down = true;
      else orders.delete(table.id);
      mark();
      arrange(body, body.told);
    });
    head.replaceChildren(button);
  });
  mark();
  arrange(body, body.told);
}

for (const table of document.querySelectorAll("table")) sortable(table);
