// A plot: a canvas that fits its box, redraws when the box or the colours change, and names what is under the pointer.

const drawing = [];
let drawn = false;

function drawLater(task) {
  drawing.push(task);
  if (drawing.length === 1) requestAnimationFrame(drawNext);
}

// One plot a frame: a page of many plots answers from the start.
function drawNext() {
  drawing[0]();
  drawing.shift();
  if (drawing.length) requestAnimationFrame(drawNext);
  else if (!drawn) {
    drawn = true;
    document.documentElement.dataset.drawn = "yes";
  }
}

const palette = new Map();
const painted = new Set();

// Paper is white whatever the screen is; a print does not wait for a frame, so everything is drawn at once.
for (const media of ["print", "(prefers-color-scheme: dark)"]) {
  matchMedia(media).addEventListener("change", () => {
    palette.clear();
    for (const entry of [...painted]) {
      if (entry.node.isConnected) entry.paint();
      else painted.delete(entry);
    }
  });
}

function colour(name) {
  if (!palette.has(name)) palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return palette.get(name);
}

const tooltip = el("div", { class: "tip", role: "status", hidden: true });

function showTip(lines, x, y) {
  tooltip.replaceChildren(...lines.map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, String(value)))));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = Math.min(x + 14, document.documentElement.clientWidth - box.width - 8);
  const top = y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16;
  tooltip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

function hideTip() {
  tooltip.hidden = true;
}

class Plot {
  // draw(plot) paints; tip(row) gives lines for a point that was added with hit(); open(row) is a click on it.
  constructor({ height, label, draw, tip = null, open = null, minWidth = 0 }) {
    this.options = { height, draw, tip, open };
    this.canvas = el("canvas", { role: "img", "aria-label": label });
    this.ring = el("div", { class: "ring", hidden: true });
    this.node = el("div", { class: "plot", style: { height: `${height}px`, minWidth: minWidth ? `${minWidth}px` : "" } }, this.canvas, this.ring);
    this.hits = { x: [], y: [], row: [] };
    this.queued = false;
    this.dragged = false;
    new ResizeObserver(() => this.redraw()).observe(this.node);
    painted.add({ node: this.node, paint: () => this.paint() });
    if (tip) this.listen();
  }

  redraw() {
    if (this.queued) return;
    this.queued = true;
    drawLater(() => {
      this.queued = false;
      this.paint();
    });
  }

  paint() {
    const width = this.node.clientWidth;
    if (!width) return;
    const ratio = Math.min(3, devicePixelRatio || 1);
    this.width = width;
    this.height = this.options.height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context = this.canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.context.font = "11px system-ui, sans-serif";
    this.hits = { x: [], y: [], row: [] };
    this.ring.hidden = true;
    this.options.draw(this);
  }

  hit(x, y, row) {
    this.hits.x.push(x);
    this.hits.y.push(y);
    this.hits.row.push(row);
  }

  nearest(x, y, reach = 18) {
    let best = -1;
    let distance = reach * reach;
    const { x: xs, y: ys } = this.hits;
    for (let index = 0; index < xs.length; index++) {
      const d = (xs[index] - x) ** 2 + (ys[index] - y) ** 2;
      if (d < distance) [best, distance] = [index, d];
    }
    return best;
  }

  listen() {
    const find = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return this.nearest(event.clientX - box.left, event.clientY - box.top);
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const index = find(event);
      this.ring.hidden = index < 0;
      this.canvas.style.cursor = index >= 0 && this.options.open ? "pointer" : "";
      if (index < 0) return hideTip();
      this.ring.style.transform = `translate(${this.hits.x[index] - 6}px, ${this.hits.y[index] - 6}px)`;
      showTip(this.options.tip(this.hits.row[index]), event.clientX, event.clientY);
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.ring.hidden = true;
      hideTip();
    });
    this.canvas.addEventListener("click", (event) => {
      const dragged = this.dragged;
      this.dragged = false;
      if (dragged) return;
      const index = find(event);
      if (index >= 0 && this.options.open) this.options.open(this.hits.row[index]);
    });
  }

  // The widest of some texts, for margins that fit them.
  widest(texts) {
    return Math.max(0, ...texts.map((text) => this.context.measureText(text).width));
  }

  fitted(text, width) {
    if (this.context.measureText(text).width <= width) return text;
    let short = text;
    while (short.length > 1 && this.context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
    return `${short}…`;
  }

  axes({ left, top, right, bottom, x, y, xTitle, yTitle, xRoom = 60 }) {
    const context = this.context;
    context.strokeStyle = colour("line");
    context.fillStyle = colour("muted");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of y.ticks(Math.max(2, Math.round((bottom - top) / 34)))) {
      this.line(left, tick.at, right, tick.at);
      context.fillText(this.fitted(tick.text, left - 10), left - 7, tick.at);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const ticks = x.ticks(Math.max(2, Math.floor((right - left) / xRoom)));
    const room = x.band ? Math.max(x.band, (right - left) / Math.max(1, ticks.length)) - 4 : 90;
    const low = this.height - (xTitle ? 32 : 16);
    for (const tick of ticks) {
      const text = this.fitted(tick.text, room);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(tick.at, half + 1), this.width - half - 1), low);
    }
    context.fillStyle = colour("faint");
    if (xTitle) context.fillText(this.fitted(xTitle, right - left), (left + right) / 2, this.height - 14);
    context.textAlign = "left";
    if (yTitle) context.fillText(yTitle, 2, 1);
  }

  line(x1, y1, x2, y2) {
    this.context.beginPath();
    this.context.moveTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
    this.context.lineTo(Math.round(x2) + 0.5, Math.round(y2) + 0.5);
    this.context.stroke();
  }

  star(x, y) {
    const context = this.context;
    context.beginPath();
    for (let index = 0; index < 10; index++) {
      const angle = (index * Math.PI) / 5 - Math.PI / 2;
      const size = index % 2 ? 3.4 : 8;
      context.lineTo(x + size * Math.cos(angle), y + size * Math.sin(angle));
    }
    context.closePath();
    context.fillStyle = colour("best");
    context.strokeStyle = colour("card");
    context.lineWidth = 1.5;
    context.fill();
    context.stroke();
  }
}

const SHAPES = ["circle", "square", "triangle", "diamond", "cross", "ring"];

function mark(context, shape, x, y, size) {
  context.beginPath();
  if (shape === "circle" || shape === "ring") context.arc(x, y, size, 0, 2 * Math.PI);
  else if (shape === "square") context.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
  else if (shape === "triangle") {
    context.moveTo(x, y - size * 1.2);
    context.lineTo(x + size * 1.15, y + size * 0.9);
    context.lineTo(x - size * 1.15, y + size * 0.9);
    context.closePath();
  } else if (shape === "down") {
    context.moveTo(x, y + size * 1.2);
    context.lineTo(x + size * 1.15, y - size * 0.9);
    context.lineTo(x - size * 1.15, y - size * 0.9);
    context.closePath();
  } else if (shape === "diamond") {
    context.moveTo(x, y - size * 1.35);
    context.lineTo(x + size * 1.35, y);
    context.lineTo(x, y + size * 1.35);
    context.lineTo(x - size * 1.35, y);
    context.closePath();
  } else if (shape === "tick") {
    context.moveTo(x, y - size * 1.3);
    context.lineTo(x, y + size * 1.3);
  } else {
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
  }
  if (shape === "ring" || shape === "cross" || shape === "tick") context.stroke();
  else context.fill();
}

const STATUS_SHAPE = { failed: "cross", timed_out: "triangle", infeasible: "tick", pruned: "diamond", cancelled: "square" };

function statusMark(context, status, x, y, size = 3.2) {
  context.fillStyle = context.strokeStyle = colour(status);
  context.lineWidth = 1.4;
  mark(context, STATUS_SHAPE[status] || "ring", x, y, size);
}
