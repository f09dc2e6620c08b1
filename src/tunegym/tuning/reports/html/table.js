// Every trial: sorted, filtered, a page of rows at a time, so that 20,000 trials cost no more than 50.

const ROWS = 50;

function trialColumns(trials) {
  const { table: columns } = trials;
  const found = [
    { title: "trial", number: true, sort: (row) => columns.number[row], text: (row) => String(columns.number[row]) },
    { title: "status", sort: (row) => columns.status[row], text: (row) => statusTitle(trials.status(row)) + (columns.cached_from[row] !== null ? ", cached" : ""), status: true },
    ...(columns.phases.length > 1 ? [{ title: "phase", sort: (row) => columns.phase[row], text: (row) => trials.phase(row) }] : []),
    { title: "reward", head: REWARD, number: true, sort: (row) => (trials.measured(row) ? columns.reward[row] : null), text: (row) => (trials.measured(row) ? number(columns.reward[row]) : "") },
    ...trials.parameters.map((one) => ({ title: one.name, number: !one.list, drawn: one.drawn, value: true, sort: (row) => (one.has(row) ? one.place(row) : null), text: (row) => one.text(row) })),
    ...columns.metrics.flatMap((one) => [
      { title: one.name, head: withGoal(trials.experiment, one.name), number: true, sort: (row) => one.values[row], text: (row) => number(one.values[row]) },
      ...(one.spread ? [{ title: `${one.name} spread`, number: true, sort: (row) => one.spread[row], text: (row) => number(one.spread[row], 2) }] : []),
    ]),
    { title: "took", number: true, sort: (row) => columns.duration_s[row], text: (row) => seconds(columns.duration_s[row]) },
  ];
  const taken = new Set();
  for (const column of found) {
    while (taken.has(column.title)) column.title += "'"; // a metric may be called like a knob
    taken.add(column.title);
  }
  return found;
}

// Words that must all be in a row; name=text, name>number and name<number look at one column.
function matcher(filter, columns, trials) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const parts = /^(.+?)(>=|<=|[=<>])(.*)$/.exec(word);
    const column = parts && columns.find((one) => one.title.toLowerCase() === parts[1]);
    if (!column) return (row) => rowText(trials, columns, row).includes(word);
    const [, , operator, wanted] = parts;
    if (operator === "=") return (row) => column.text(row).toLowerCase() === wanted;
    const bound = Number(wanted);
    const compare = { ">": (a) => a > bound, "<": (a) => a < bound, ">=": (a) => a >= bound, "<=": (a) => a <= bound }[operator];
    const numeric = (row) => (column.number ? column.sort(row) : Number(column.text(row)));
    return (row) => numeric(row) !== null && compare(numeric(row));
  });
  return (row) => tests.every((test) => test(row));
}

function rowText(trials, columns, row) {
  trials.texts ??= new Array(trials.count);
  trials.texts[row] ??= [...columns.map((column) => column.text(row)), trials.reason(row)].join(" ").toLowerCase();
  return trials.texts[row];
}

class TrialTable {
  constructor(experiment, trials) {
    Object.assign(this, { experiment, trials, columns: trialColumns(trials), by: 0, falling: false, page: 0, filter: "", status: "", opened: new Set() });
    this.heads = this.columns.map((column, index) =>
      el("th", { class: column.number ? "number" : null, scope: "col" },
        el("button", { type: "button", onclick: () => this.sortBy(index) }, column.head || visible(column.title), column.drawn ? el("span", { class: "tag" }, "drawn") : null)));
    this.body = el("tbody");
    this.told = el("span", { class: "told", role: "status" });
    const step = (title, by) => el("button", { type: "button", "aria-label": title, onclick: () => this.turn(by) }, by < 0 ? "\u2190" : "\u2192");
    this.buttons = [step("previous rows", -1), step("next rows", 1)];
    const statuses = [["", "every status"], ...Object.keys(experiment.trials.statuses).map((one) => [one, statusTitle(one)])];
    const input = el("input", { type: "search", placeholder: "filter: words, reward>1, status=failed", "aria-label": "filter trials", oninput: () => this.refilter(input.value, this.status) });
    this.node = section("trials", "Every trial", "Click a heading to sort, a row for its command and output.",
      el("div", { class: "bar-row" }, input, select("status", statuses, "", (chosen) => this.refilter(this.filter, chosen)), el("span", { class: "pager" }, ...this.buttons, this.told)),
      el("div", { class: "scroll trials", tabindex: 0, role: "region", "aria-label": "trials" },
        el("table", {}, el("thead", {}, el("tr", {}, ...this.heads)), this.body)));
    this.refilter("", "");
  }

  refilter(filter, status) {
    Object.assign(this, { filter, status, page: 0 });
    const matches = matcher(filter, this.columns, this.trials);
    this.rows = this.trials.rows.filter((row) => (!status || this.trials.status(row) === status) && matches(row));
    this.resort();
  }

  sortBy(index) {
    this.falling = this.by === index ? !this.falling : this.columns[index].title === "reward";
    this.by = index;
    this.page = 0;
    this.resort();
  }

  resort() {
    const key = this.columns[this.by].sort;
    const sign = this.falling ? -1 : 1;
    this.rows.sort((a, b) => {
      const [x, y] = [key(a) ?? null, key(b) ?? null];
      if (x === null || y === null) return (x === null) - (y === null) || a - b; // what is missing is last, either way
      return x < y ? -sign : x > y ? sign : a - b;
    });
    this.heads.forEach((head, index) => head.setAttribute("aria-sort", index === this.by ? (this.falling ? "descending" : "ascending") : "none"));
    this.paint();
  }

  turn(by) {
    this.page += by;
    this.paint();
  }

  // Bring one trial into view with its details.
  show(row) {
    if (!this.rows.includes(row)) this.refilter("", "");
    this.page = Math.floor(this.rows.indexOf(row) / ROWS);
    this.opened.add(row);
    this.paint();
    this.body.querySelector(`[data-row="${row}"]`).scrollIntoView({ block: "center", behavior: "smooth" });
  }

  paint() {
    const pages = Math.max(1, Math.ceil(this.rows.length / ROWS));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const from = this.page * ROWS;
    const shown = this.rows.slice(from, from + ROWS);
    this.body.replaceChildren(...shown.flatMap((row) => this.line(row)));
    this.buttons[0].disabled = this.page === 0;
    this.buttons[1].disabled = this.page === pages - 1;
    const of = this.rows.length === this.trials.count ? plural(this.trials.count, "trial") : `${count(this.rows.length)} of ${plural(this.trials.count, "trial")}`;
    this.told.textContent = this.rows.length ? `${count(from + 1)}\u2013${count(from + shown.length)} of ${of}` : `none of ${plural(this.trials.count, "trial")}`;
  }

  line(row) {
    const { trials } = this;
    const open = this.opened.has(row);
    const cells = this.columns.map((column, index) => {
      const text = column.text(row);
      if (index === 0) return el("td", { class: "number" }, el("button", { type: "button", "aria-expanded": open, "aria-label": `details of trial ${text}` }, text));
      if (column.status) return el("td", {}, el("span", { class: `status ${trials.status(row)}` }, text));
      return el("td", { class: column.number ? "number" : column.value ? "value" : null, title: text.length > 30 ? text : null }, text);
    });
    const line = el("tr", { "data-row": row, class: row === trials.bestRow ? "best" : null, onclick: () => this.toggle(row) }, ...cells);
    return open ? [line, el("tr", { class: "detail" }, el("td", { colspan: this.columns.length }, el("div", {}, ...this.details(row))))] : [line];
  }

  toggle(row) {
    if (String(getSelection()).length) return; // the user copies text
    if (!this.opened.delete(row)) this.opened.add(row);
    this.paint();
    this.body.querySelector(`[data-row="${row}"] button`).focus({ preventScroll: true });
  }

  details(row) {
    const { trials } = this;
    const { table: columns } = trials;
    const found = [definitions([
      ["reason", trials.reason(row)],
      [trials.measured(row) ? "reward" : "penalty that the agent was told", String(columns.reward[row])],
      ["measured by", columns.cached_from[row] !== null ? `trial ${columns.cached_from[row]}, served from the cache` : ""],
      ["samples", columns.samples && columns.samples[row] ? String(columns.samples[row]) : ""],
      ["closed after", seconds(columns.closed_s[row])],
      ...trials.parameters.filter((one) => one.has(row)).map((one) => [one.name, one.exact(row)]),
      ...columns.metrics.filter((one) => one.values[row] !== null).map((one) => [one.name, String(one.values[row])]),
    ])];
    const { commands, outputs } = this.experiment.page;
    const lines = commands && commands.of[row];
    const ran = trials.status(row) === "infeasible" || columns.cached_from[row] !== null ? "would have run" : "ran";
    if (lines) found.push(el("h4", {}, ran), el("pre", {}, visible(lines.map((line) => commands.lines[line]).join("\n"))));
    for (const [name, text, cut] of outputs[columns.number[row]] || []) {
      found.push(el("h4", {}, `${name}${cut ? ", its end" : ""}`), el("pre", {}, (cut ? "…" : "") + visible(text)));
    }
    if (!outputs[columns.number[row]]) found.push(empty("No output of this trial is in this page."));
    return found;
  }
}
