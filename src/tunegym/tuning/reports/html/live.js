// A live experiment: episodes and their returns instead of settings and their rewards.

function liveTiles(experiment) {
  const { steps, episodes, time } = experiment;
  const measured = steps.statuses.measured || 0;
  const done = steps.total ? `${count(steps.done)} of ${count(steps.total)}` : count(steps.done);
  const tile = (name, value, about) => el("div", { class: "tile" }, el("span", {}, name), el("strong", {}, value), el("small", {}, about));
  return el("div", { class: "tiles" },
    tile("mean return (max)", episodes.mean_return === null ? "none" : number(episodes.mean_return), episodes.mean_return === null ? "no episode has ended by itself" : `in the last ${plural(episodes.mean_return_over, "episode")}`),
    tile("steps", done, `${count(measured)} measured, ${count(steps.done - measured)} not`),
    tile("time", seconds(time.wall_s), time.steps_per_s ? `${number(time.steps_per_s, 3)} steps per second` : ""),
    tile("agent", visible(experiment.agent || ""), `seed ${experiment.seed}`));
}

function liveStyles(lines) {
  return lines.map((line, index) => ({ ...line, style: lineStyle(index) }));
}

function returnSection(experiment) {
  const { page } = experiment;
  const { returns } = page;
  if (!returns.count.some((many) => many > 0)) {
    return section("returns", "Return over steps", null, empty("No episode has ended by itself yet, so there is no return to show."));
  }
  const tip = (index) => [["steps", stepSpan(page, index)], ["episodes", count(returns.count[index])], ["mean return", number(returns.mean[index], 6)],
    ["lowest", number(returns.low[index], 6)], ["highest", number(returns.high[index], 6)]];
  const lines = [{ label: "mean", values: returns.mean, style: { colour: "accent", faint: true, width: 1.2 } },
    { label: "running mean", values: steadied(returns.mean, returns.count), style: { colour: "text" } }];
  const made = linesPlot({ label: "Return over steps", yTitle: "return", ends: page.ends, lines, band: returns, marks: page.failures, tip, height: 320 });
  const items = [{ text: "running mean", line: true, colour: "text" }, { text: "mean", line: true, colour: "accent" }, { text: "lowest to highest", shape: "square", colour: "accent" }];
  if (page.failures.some((many) => many > 0)) items.push({ text: "steps without a measurement", shape: "cross", colour: "failed" });
  const wide = page.width > 1 ? `Each point is the mean over the episodes that ended in ${count(page.width)} steps. ` : "";
  return section("returns", "Return over steps", `${wide}Episodes that were cut short by a reset or the run's end don't count.`, ...withRange(made, legend(items)));
}

function groupSection(experiment) {
  const { page, per_context: facts } = experiment;
  const children = page.groups.flatMap((group) => {
    const lines = liveStyles(group.lines.map((one) => ({ label: one.label, values: steadied(one.mean, one.count), mean: one.mean, count: one.count })));
    const tip = (index, line) => [["context", visible(line.label)], ["steps", stepSpan(page, index)], ["episodes", count(line.count[index])], ["mean return", number(line.mean[index], 6)], ["running mean", number(line.values[index], 6)]];
    const made = linesPlot({ label: `Return over steps by ${visible(group.by)}`, yTitle: "return", ends: page.ends, lines, tip });
    return [el("h3", {}, `By ${visible(group.by)}`), ...withRange(made, legend(lines.map((line) => ({ text: visible(line.label), line: true, ...line.style }))))];
  });
  const rows = facts.map((one) => [visible(one.group), right(count(one.episodes)), right(number(one.mean_return)), right(number(one.recent_return)), right(count(one.recent_over)), right(number(one.mean_length))]);
  return section("contexts", "Contexts", "Episodes by the context that they began in; the lines are running means.", ...children,
    table(["context", right("episodes"), right("mean return (max)"), right("mean of the last"), right("over"), right("mean length")], rows, { label: "contexts" }));
}

function lengthSection(experiment) {
  const { page } = experiment;
  const { lengths } = page;
  const tip = (index) => [["steps", stepSpan(page, index)], ["episodes", count(lengths.count[index])], ["mean length", number(lengths.mean[index], 6)],
    ["shortest", count(lengths.low[index])], ["longest", count(lengths.high[index])]];
  const lines = [{ label: "mean", values: lengths.mean, style: { colour: "accent" } }];
  const made = linesPlot({ label: "Episode length over steps", yTitle: "steps in an episode", ends: page.ends, lines, band: lengths, tip, height: 220 });
  return section("lengths", "Episode lengths", null, ...withRange(made));
}

function stepRewardSection(experiment) {
  const { page } = experiment;
  const { rewards } = page;
  const tip = (index) => [["steps", stepSpan(page, index)], ["recorded", count(rewards.count[index])], ["mean reward", number(rewards.mean[index], 6)]];
  const lines = [{ label: "mean", values: rewards.mean, style: { colour: "accent" } }];
  const made = linesPlot({ label: "Reward of a step", yTitle: "mean reward", ends: page.ends, lines, tip, height: 220 });
  return section("rewards", "Reward of a step", experiment.steps.record === "all" ? null : `Of the steps that are recorded (${visible(experiment.steps.record)}).`, ...withRange(made));
}

function trainingSection(experiment) {
  const { page } = experiment;
  const figures = page.training.map((one) => {
    const tip = (index) => [[`after ${experiment.live ? "steps" : "trials"}`, count(page.ends[index])], [visible(one.name), number(one.mean[index], 6)]];
    const { plot } = linesPlot({ label: `${visible(one.name)} over ${experiment.live ? "steps" : "trials"}`, yTitle: "", ends: page.ends, lines: [{ label: one.name, values: one.mean, style: { colour: "c3" } }], tip, height: 170 });
    return el("figure", {}, el("figcaption", {}, visible(one.name)), plot.node);
  });
  return section("training", "Training", "The values that the agent recorded at each update, from policy/training.jsonl.", el("div", { class: "figures" }, ...figures));
}

function livePolicySection(experiment) {
  const { policy } = experiment;
  return section("policy", "Policy", null,
    policy ? el("p", {}, "It is in ", el("code", {}, visible(policy.path)), ", beside this page.") : empty("There is no policy file to load."),
    policy && policy.load ? el("pre", {}, visible(policy.load)) : null);
}

function liveOutcomeSection(experiment) {
  const { steps, episodes, restarts } = experiment;
  const rows = Object.entries(steps.statuses).map(([status, many]) =>
    el("li", {}, el("span", {}, statusTitle(status)), bar(many / steps.done, status === "measured" ? "accent" : status), el("b", {}, `${count(many)} (${percent(many / steps.done)})`)));
  const aside = [];
  if (steps.lost) aside.push(`${plural(steps.lost, "number")} of sessions that were cut off ${steps.lost === 1 ? "is" : "are"} lost: ${steps.lost_ranges.map(([a, b]) => (a === b ? count(a) : `${count(a)} to ${count(b)}`)).join(", ")}.`);
  if (steps.unrecorded) aside.push(`Up to ${plural(steps.unrecorded, "step")} may have been taken and ${steps.unrecorded === 1 ? "is" : "are"} not on record.`);
  if (restarts) aside.push(`Servers were started again ${restarts === 1 ? "once" : `${count(restarts)} times`}.`);
  const ends = Object.entries(episodes.ends).map(([end, many]) => `${count(many)} ${visible(end)}`).join(", ");
  const reasons = experiment.reasons.map((one) => [statusTitle(one.status), el("span", { class: "reason" }, visible(one.reason)), right(count(one.count))]);
  return section("outcomes", "Outcomes", aside.join(" ") || null,
    steps.done ? el("ul", { class: "bars" }, ...rows) : empty("No step has been taken yet."),
    definitions([
      ["episodes that are over", count(episodes.over)],
      ["how they ended", ends],
      ["best episode", episodes.best ? `number ${count(episodes.best.episode)}, return ${number(episodes.best.return, 6)}, at step ${count(episodes.best.last_step)}` : ""],
      ["recorded steps", `${count(steps.recorded)} (${visible(steps.record)})`],
      ["server restarts", restarts === null ? "not on record" : count(restarts)],
    ]),
    reasons.length ? el("h3", {}, "Why steps were not measured") : null,
    reasons.length ? table(["status", "reason, by its first example", right("steps")], reasons, { label: "reasons" }) : null);
}

function paceSection(experiment) {
  const { page, time } = experiment;
  const known = page.pace.some((one) => one !== null);
  const tip = (index) => [["steps", stepSpan(page, index)], ["steps per second", number(page.pace[index], 4)]];
  const made = known ? linesPlot({ label: "Steps per second", yTitle: "steps per second", ends: page.ends, lines: [{ label: "pace", values: page.pace, style: { colour: "c6" } }], tip, height: 190, zero: true }) : null;
  return section("time", "Time", null, definitions([
    ["from start to end", seconds(time.wall_s) + (time.sessions > 1 ? ` in ${time.sessions} sessions` : "")],
    ["steps per second", time.steps_per_s ? number(time.steps_per_s, 3) : ""],
  ]), ...(made ? withRange(made) : []));
}

function liveNode(run, experiment) {
  const { page } = experiment;
  const episodes = page.returns.count.some((many) => many > 0);
  const sections = [
    returnSection(experiment),
    page.groups.length ? groupSection(experiment) : null,
    episodes ? lengthSection(experiment) : null,
    page.rewards.count.some((many) => many > 0) ? stepRewardSection(experiment) : null,
    page.training.length ? trainingSection(experiment) : null,
    livePolicySection(experiment),
    liveOutcomeSection(experiment),
    paceSection(experiment),
    runSection(run, { ...experiment, objectives: [], goals: {} }),
  ].filter(Boolean);
  const links = sections.map((one) => el("a", { href: `#${one.id}` }, one.querySelector("h2").textContent));
  const problem = experiment.problem ? box("bad", el("strong", {}, visible(experiment.problem[0].toUpperCase() + experiment.problem.slice(1)))) : null;
  return el("div", {}, problem, liveTiles(experiment), ...page.notes.map((note) => box("note", el("p", {}, visible(note)))),
    el("nav", { class: "sections", "aria-label": "sections" }, ...links), ...sections);
}
