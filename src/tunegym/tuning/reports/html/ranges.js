// Ranges that a few far values don't stretch: where most values lie, or all of them.

function spanned(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const one of values) [low, high] = [Math.min(low, one), Math.max(high, one)];
  return low <= high ? [low, high] : null;
}

// Halves don't overflow. A single value, which has no width, counts as wide as it is large.
function halfWidth([low, high]) {
  return high / 2 - low / 2 || Math.abs(low) || 1;
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted[(sorted.length - 1) >> 1] / 2 + sorted[sorted.length >> 1] / 2;
}

// Most of the values: those between the whiskers of a box plot, no farther from the quartiles than 1.5 times these are
// apart.
function bulk(values) {
  const apart = values.map((one) => one / 2);
  const sorted = Float64Array.from(apart).sort();
  const [low, high] = [0.25, 0.75].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
  const reach = 1.5 * (high - low);
  return values.filter((_, index) => apart[index] >= low - reach && apart[index] <= high + reach);
}

// A linear scale at whose edge all far values lie; far(value) is -1 below it, 1 above it, else 0.
function edged(domain, pixels) {
  const scale = linear(domain, pixels);
  const far = (value) => (value < domain[0] ? -1 : value > domain[1] ? 1 : 0);
  return { ...scale, far, at: (value) => (far(value) ? pixels[far(value) < 0 ? 0 : 1] : scale.at(value)) };
}

// What an axis shows: the range of all values, or of those that are near. They are the same unless the whole is
// `stretch` times as large, so that what is near would be pressed together.
class Reach {
  constructor(values, nearby, stretch = 2) {
    this.values = values;
    this.whole = spanned([...values, ...nearby]);
    const near = spanned(nearby);
    this.near = near && halfWidth(this.whole) > stretch * halfWidth(near) ? near : this.whole;
    this.all = false;
  }

  get stretched() {
    return this.near !== this.whole;
  }

  scale(pixels, padding = 0.06) {
    return edged(padded(this.all ? this.whole : this.near, padding), pixels);
  }

  get outside() {
    const { far } = this.scale([0, 1]);
    return this.values.filter(far).length;
  }

  told(what) {
    return farther(this.outside, what);
  }
}

function farther(outside, what) {
  return outside ? `${plural(outside, what)} ${outside === 1 ? "lies" : "lie"} farther out: the triangles at the edge.` : "";
}

// A choice between most and all where that makes a difference.
function rangeChoice(reaches, redraw, near = null) {
  const stretched = reaches.filter((one) => one.stretched);
  if (!stretched.length) return null;
  const few = stretched.some((one) => 2 * one.outside > one.values.length);
  return choice("range", [["near", near || (few ? "near the best" : "most")], ["all", "all"]], (chosen) => {
    for (const one of reaches) one.all = chosen === "all";
    redraw();
  });
}

// The rewards of measured trials. What exceeds a limit has paid for it in its reward, so the others say what is near:
// the best, the highest, and what is usual.
function rewardReach(trials) {
  const rows = trials.measuredRows;
  const keeping = rows.filter((row) => trials.keepsLimits(row));
  const rewards = (of) => of.map((row) => trials.score(row));
  const counted = keeping.length >= 5 ? keeping : rows;
  const most = rewards(counted);
  const best = rewards(trials.bestRows);
  return new Reach(rewards(rows), [...best, ...spanned(most).slice(1), ...bulk(most)]);
}

// A far value's mark: a triangle at the edge that points outwards.
function farMark(context, x, y, far, size) {
  mark(context, far < 0 ? "down" : "triangle", x, y + 4 * far, size);
}
