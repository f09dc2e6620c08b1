// The basics: elements, numbers as text, and one experiment's trials by row.
// Text from the data only ever becomes a text node.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    const spoken = name.startsWith("aria-"); // says true or false where other attributes are there or not
    if (value === null || value === undefined || (value === false && !spoken)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true && !spoken ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Control characters are spelled out, so that a program's output is shown and not obeyed.
function visible(text) {
  return String(text)
    .replace(/\r\n/g, "\n")
    .replace(/\r/g, "\\r\n")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`)
    .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${c.charCodeAt(0).toString(16)}`);
}

// The same as `number` of the terminal.
function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return minus(value.toLocaleString("en-US"));
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return minus(value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e"));
  const rounded = Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1)))));
  return minus(rounded.toLocaleString("en-US", { maximumFractionDigits: 12 }));
}

const REWARD = "reward (max)"; // more is always better

// A metric with the direction in which it is better, if that is known.
function withGoal(experiment, metric) {
  return visible(metric) + (Object.hasOwn(experiment.goals, metric) ? ` (${experiment.goals[metric]})` : "");
}

function minus(text) {
  return text.replace(/-/g, "\u2212");
}

function count(value) {
  return value.toLocaleString("en-US");
}

function plural(value, one, many = one + "s") {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${number(value * 1e6, 2)} µs`;
  if (value < 1) return `${number(value * 1e3, 3)} ms`;
  if (value < 60) return `${number(value, 3)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${count(Math.floor(whole / 3600))} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

function instant(value) {
  return value ? new Date(value * 1000).toLocaleString("sv-SE") : "";
}

// The mean and half of the interval's width, where the interval is known and more than what adding floats leaves.
function intervalText(mean, interval) {
  const half = interval ? (interval[1] - interval[0]) / 2 : 0;
  return half > 1e-9 * Math.abs(mean) ? `${number(mean)} ±${number(half, 2)}` : number(mean);
}

// A long float in as many digits as one reads; anything else as it is.
function short(text) {
  return /^-?\d+\.\d{6,}(e-?\d+)?$/.test(text) ? number(Number(text), 5) : visible(text);
}

function pairs(values) {
  return Object.entries(values).map(([name, value]) => `${visible(name)}=${short(value)}`).join("  ");
}

const STATUS = {
  measured: { title: "measured", about: "ran, and every metric was read" },
  failed: { title: "failed", about: "the job failed, or gave no usable metric" },
  timed_out: { title: "timed out", about: "ended because it ran too long" },
  infeasible: { title: "infeasible", about: "refused by a constraint; nothing ran" },
  pruned: { title: "pruned", about: "ended early: what it reported was hopeless" },
  cancelled: { title: "cancelled", about: "never ran: the experiment ended first" },
};

function statusTitle(status) {
  return status in STATUS ? STATUS[status].title : status;
}

// One knob or env_param: its text and its place on an axis, by row.
class Parameter {
  constructor(column, drawn) {
    this.name = column.name;
    this.drawn = drawn;
    this.column = column;
    this.list = column.kind === "list";
    this.labels = this.list ? column.labels.map(visible) : null;
  }

  has(row) {
    return this.list ? this.column.index[row] >= 0 : this.column.values[row] !== null;
  }

  place(row) {
    return this.list ? this.column.index[row] : this.column.values[row];
  }

  text(row) {
    if (!this.has(row)) return "";
    if (this.list) return this.labels[this.column.index[row]];
    if (this.column.text) return this.column.text[row];
    const value = this.column.values[row];
    return this.column.dtype === "int" ? String(value) : number(value, 6);
  }

  exact(row) {
    if (this.list || this.column.text || !this.has(row)) return this.text(row);
    return String(this.column.values[row]);
  }
}

// The trials of one experiment by row.
class Trials {
  constructor(experiment) {
    const table = experiment.page.table;
    this.table = table;
    this.experiment = experiment;
    this.count = table.number.length;
    this.knobs = table.knobs.map((column) => new Parameter(column, false));
    this.envParams = table.env_params.map((column) => new Parameter(column, true));
    this.parameters = [...this.knobs, ...this.envParams];
    this.rowOf = new Map(table.number.map((value, row) => [value, row]));
    this.rows = Array.from({ length: this.count }, (_, row) => row);
    this.measuredRows = this.rows.filter((row) => this.measured(row));
    this.searchRows = this.measuredRows.filter((row) => table.cached_from[row] === null && this.phase(row) === "search");
    this.otherRows = this.rows.filter((row) => !this.measured(row));
    this.bestRow = experiment.best ? this.rowOf.get(experiment.best.trial) : undefined;
    this.bestRows = this.bestRow === undefined ? [] : this.measuredRows.filter((row) =>
      this.table.cached_from[row] === null && this.knobs.every((one) => one.place(row) === one.place(this.bestRow)));
    const values = new Map(table.metrics.map((one) => [one.name, one.values]));
    this.limits = experiment.objectives.filter((one) => one.limit !== undefined && values.has(one.metric))
      .map((one) => [one.goal === "max" ? 1 : -1, one.limit, values.get(one.metric)]);
    this.sortContexts();
  }

  measured(row) {
    return this.table.statuses[this.table.status[row]] === "measured";
  }

  keepsLimits(row) {
    return this.limits.every(([sign, limit, values]) => values[row] === null || sign * (limit - values[row]) <= 0);
  }

  status(row) {
    return this.table.statuses[this.table.status[row]];
  }

  phase(row) {
    return this.table.phases[this.table.phase[row]];
  }

  reward(row) {
    return this.table.reward[row];
  }

  // What may be compared over contexts: the reward, or what it is above the typical one of its context.
  score(row) {
    return (this.table.advantage || this.table.reward)[row];
  }

  get scoreTitle() {
    return this.table.advantage ? "advantage within its context" : "reward";
  }

  reason(row) {
    return visible(this.table.reasons[this.table.reason[row]]);
  }

  // Contexts that are few enough get a colour and a shape each.
  sortContexts() {
    const found = new Map();
    this.context = new Array(this.count).fill(0);
    if (this.envParams.length) {
      for (const row of this.rows) {
        const key = this.envParams.map((one) => one.place(row)).join("\u0000");
        if (!found.has(key)) found.set(key, { row, index: found.size });
        this.context[row] = found.get(key).index;
      }
    }
    this.contexts = [...found.values()].map(({ row }) => this.envParams.map((one) => `${one.name}=${one.text(row)}`).join("  "));
    this.fewContexts = this.contexts.length > 1 && this.contexts.length <= 6;
  }

  range(rows, value) {
    let low = Infinity;
    let high = -Infinity;
    for (const row of rows) {
      const one = value(row);
      if (one === null || one === undefined) continue;
      if (one < low) low = one;
      if (one > high) high = one;
    }
    return low <= high ? [low, high] : null;
  }

  tip(row) {
    const lines = [["trial", `${this.table.number[row]}, ${statusTitle(this.status(row))}`]];
    if (this.phase(row) !== "search") lines.push(["phase", this.phase(row)]);
    if (this.measured(row)) lines.push(["reward", number(this.reward(row), 6)]);
    else lines.push(["reason", this.reason(row)]);
    if (this.table.cached_from[row] !== null) lines.push(["cached", `from trial ${this.table.cached_from[row]}`]);
    for (const one of this.parameters) if (one.has(row)) lines.push([one.name, one.exact(row)]);
    return lines;
  }
}
