// How the trials ended, and what they cost.

function outcomeSection(experiment) {
  const { statuses, done, open, cached } = experiment.trials;
  const rows = Object.entries(statuses).map(([status, many]) =>
    el("li", { title: STATUS[status] ? STATUS[status].about : null }, el("span", {}, statusTitle(status)), bar(many / done, status === "measured" ? "accent" : status),
      el("b", {}, `${count(many)} (${percent(many / done)})`)));
  const aside = [];
  if (cached) aside.push(`${plural(cached, "measurement")} came from the cache.`);
  if (open) aside.push(`${plural(open, "trial")} ${open === 1 ? "is" : "are"} open: decided, and without an outcome.`);
  const reasons = experiment.reasons.map((one) => [statusTitle(one.status), el("span", { class: "reason" }, visible(one.reason)), right(count(one.count))]);
  return section("outcomes", "Outcomes", aside.join(" ") || null,
    done ? el("ul", { class: "bars" }, ...rows) : empty("No trial has ended yet."),
    reasons.length ? el("h3", {}, "Why trials were not measured") : null,
    reasons.length ? table(["status", "reason", right("trials")], reasons, { label: "reasons" }) : null);
}

function timeSection(experiment) {
  const { time } = experiment;
  const total = time.trials_s;
  const rows = Object.entries(time.by_status_s).filter(([, spent]) => spent > 0).sort((a, b) => b[1] - a[1]).map(([status, spent]) =>
    el("li", {}, el("span", {}, statusTitle(status)), bar(total ? spent / total : 0, status === "measured" ? "accent" : status),
      el("b", {}, `${seconds(spent)} (${percent(total ? spent / total : 0)})`)));
  return section("time", "Time and cost", null,
    definitions([
      ["from start to end", seconds(time.wall_s) + (time.sessions > 1 ? ` in ${time.sessions} sessions` : "")],
      ["all trials together", seconds(total)],
      ["CPU time of measurements", time.cpu_s === null ? "not known" : seconds(time.cpu_s)],
      ["spent without a measurement", total ? `${seconds(time.not_measured_s)} (${percent(time.not_measured_s / total)})` : ""],
      ["saved by the cache", experiment.trials.cached ? seconds(time.saved_s) : ""],
    ]),
    rows.length ? el("h3", {}, "Where the trials' time went") : null, rows.length ? el("ul", { class: "bars" }, ...rows) : null);
}
