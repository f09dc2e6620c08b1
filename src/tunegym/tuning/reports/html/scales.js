// Scales: from values to pixels, with ticks that a person would choose.

function niceStep(span, most) {
  const raw = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((one) => one * power).find((step) => step >= raw * 0.999999) || raw;
}

function tickText(value, step) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return minus(value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e"));
  const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step) + 1e-9)));
  return minus(value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

function padded([low, high], share) {
  if (low === high) {
    const width = Math.abs(low) * 0.1 || 1;
    return [low - width, high + width];
  }
  // Halves, so that rewards near the largest float don't overflow.
  const width = (high / 2 - low / 2) * 2 * share;
  return [low - width, high + width];
}

function linear(domain, pixels, whole = false) {
  const [low, high] = domain;
  const scale = {
    pixels,
    at: (value) => pixels[0] + ((value / 2 - low / 2) / (high / 2 - low / 2)) * (pixels[1] - pixels[0]),
    back: (pixel) => low + ((pixel - pixels[0]) / (pixels[1] - pixels[0])) * (high - low),
    ticks: (most) => {
      let step = niceStep(high - low, most);
      if (!Number.isFinite(step) || step <= 0) return [];
      if (whole) step = Math.max(1, Math.round(step));
      const found = [];
      for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9 && found.length < 50; index++) {
        const value = Number((index * step).toPrecision(12));
        found.push({ at: scale.at(value), text: tickText(value, step) });
      }
      return found;
    },
  };
  return scale;
}

function logarithmic([low, high], pixels) {
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const inner = linear([a, b], pixels);
  return {
    pixels,
    at: (value) => inner.at(Math.log10(value)),
    back: (pixel) => 10 ** inner.back(pixel),
    ticks: (most) => {
      const decades = Math.floor(b + 1e-9) - Math.ceil(a - 1e-9) + 1;
      const every = Math.max(1, Math.ceil(decades / Math.max(2, most)));
      const factors = decades >= 3 ? [1] : decades >= 2 ? [1, 3] : [1, 2, 5];
      const found = [];
      for (let power = Math.floor(a); power <= Math.ceil(b); power++) {
        if (power % every) continue;
        for (const factor of factors) {
          const value = Number((factor * 10 ** power).toPrecision(6));
          if (value >= low * 0.999999 && value <= high * 1.000001) found.push({ at: inner.at(Math.log10(value)), text: number(value, 3) });
        }
      }
      return found;
    },
  };
}

function categorical(labels, pixels) {
  const width = (pixels[1] - pixels[0]) / Math.max(1, labels.length);
  return {
    pixels,
    band: Math.abs(width),
    at: (index) => pixels[0] + (index + 0.5) * width,
    back: (pixel) => (pixel - pixels[0]) / width - 0.5,
    ticks: (most) => {
      const every = Math.max(1, Math.ceil(labels.length / Math.max(1, most)));
      return labels.map((text, index) => ({ at: pixels[0] + (index + 0.5) * width, text })).filter((_, index) => index % every === 0);
    },
  };
}

function parameterScale(parameter, pixels) {
  if (parameter.list) return categorical(parameter.labels, pixels);
  const { low, high, log, dtype } = parameter.column;
  if (log) return logarithmic([low, high], pixels);
  return linear(padded([low, high], 0.02), pixels, dtype === "int");
}

// Jitter from the row's number, so that a row is always drawn at the same spot.
function jitter(row) {
  let state = (row + 1) * 2654435761;
  state ^= state >>> 15;
  return ((Math.imul(state, 2246822519) >>> 8) & 0xffff) / 0xffff - 0.5;
}

function timeUnit(most) {
  if (most > 2 * 3600) return { name: "h", size: 3600 };
  if (most > 300) return { name: "min", size: 60 };
  return { name: "s", size: 1 };
}
