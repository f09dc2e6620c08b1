// Sections, choices, legends and small tables.

function section(id, title, about, ...children) {
  return el("section", { id }, el("h2", {}, title), about ? el("p", { class: "about" }, about) : null, ...children);
}

// A row of buttons of which one is on; change(value) is called with the chosen one.
function choice(label, options, change) {
  const buttons = options.map(([value, text], index) =>
    el("button", { type: "button", "aria-pressed": index === 0, onclick: () => pick(value) }, text));
  const pick = (value) => {
    options.forEach(([one], index) => buttons[index].setAttribute("aria-pressed", String(one === value)));
    change(value);
  };
  return el("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

function select(label, options, chosen, change) {
  const box = el("select", { "aria-label": label, onchange: () => change(box.value) },
    ...options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return box;
}

// items: [{text, shape or line, colour}]
function legend(items) {
  return el("ul", { class: "legend" }, ...items.map((item) => {
    const canvas = el("canvas", { width: 36, height: 28, "aria-hidden": "true" });
    const paint = () => {
      const context = canvas.getContext("2d");
      context.setTransform(2, 0, 0, 2, 0, 0);
      context.clearRect(0, 0, 18, 14);
      context.fillStyle = context.strokeStyle = colour(item.colour);
      context.lineWidth = item.line ? 2 : 1.4;
      if (item.line) {
        context.setLineDash(item.dash || []);
        context.beginPath();
        context.moveTo(1, 7);
        context.lineTo(17, 7);
        context.stroke();
      } else if (item.shape === "star") Plot.prototype.star.call({ context }, 9, 7);
      else mark(context, item.shape, 9, 7, 3.6);
    };
    painted.add({ node: canvas, paint });
    paint();
    return el("li", {}, canvas, item.text);
  }));
}

// A small table. Cells are text, nodes, or {text, number: true} for what is aligned to the right.
function table(headings, rows, options = {}) {
  const cell = (tag, content) => {
    const plain = content === null || content === undefined || typeof content === "string" || content instanceof Node;
    if (plain) return el(tag, {}, content ?? "");
    return el(tag, { class: content.number ? "number" : content.class || null }, content.text ?? "");
  };
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": options.label || "table" },
    el("table", {},
      el("thead", {}, el("tr", {}, ...headings.map((one) => cell("th", one)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((one) => cell("td", one)))))));
}

// As table(), a page of rows at a time where there are many; rowAt(index) makes one.
function pagedTable(headings, many, rowAt, options) {
  const place = el("div");
  const told = el("span", { class: "told", role: "status" });
  let from = 0;
  const step = (title, by) => el("button", { type: "button", "aria-label": title, onclick: () => show(from + by) }, by < 0 ? "\u2190" : "\u2192");
  const buttons = [step("previous rows", -ROWS), step("next rows", ROWS)];
  const show = (first) => {
    from = first;
    const end = Math.min(many, from + ROWS);
    place.replaceChildren(table(headings, Array.from({ length: end - from }, (_, index) => rowAt(from + index)), options));
    told.textContent = `${count(from + 1)}\u2013${count(end)} of ${count(many)}`;
    buttons[0].disabled = from === 0;
    buttons[1].disabled = end === many;
  };
  show(0);
  return el("div", {}, many > ROWS ? el("div", { class: "bar-row" }, el("span", { class: "pager" }, ...buttons, told)) : null, place);
}

function right(text) {
  return { text, number: true };
}

function bar(share, name = "accent") {
  return el("span", { class: "bar", "aria-hidden": "true" },
    el("i", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%`, background: `var(--${name})` } }));
}

function box(kind, ...children) {
  return el("div", { class: `box ${kind}` }, ...children);
}

function folded(title, ...children) {
  return el("details", {}, el("summary", {}, title), ...children);
}

function definitions(entries) {
  return el("dl", {}, ...entries.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function empty(text) {
  return el("p", { class: "empty" }, text);
}
