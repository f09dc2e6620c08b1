// The best settings, and how certain they are.

function tiles(experiment) {
  const { best, trials, time } = experiment;
  const measured = trials.statuses.measured || 0;
  const done = trials.total ? `${count(trials.done)} of ${count(trials.total)}` : count(trials.done);
  const tile = (name, value, about) => el("div", { class: "tile" }, el("span", {}, name), el("strong", {}, value), el("small", {}, about));
  return el("div", { class: "tiles" },
    tile(`best ${REWARD}`, best ? number(best.reward) : "none",
      best ? (best.reward_spread ? `±${number(best.reward_spread, 2)} over ${spreadOver(best)}` : plural(best.samples, "sample")) : "nothing was measured"),
    tile("trials", done, `${count(measured)} measured, ${count(trials.done - measured)} not`),
    tile("time", seconds(time.wall_s), best && best.found_s !== null ? `best found after ${seconds(best.found_s)}` : ""),
    tile("agent", experiment.agent || "plain job", `seed ${experiment.seed}${experiment.repeats > 1 ? `, ${experiment.repeats} repeats` : ""}`));
}

function spreadOver(setting) {
  return setting.reward_spread_over === "trials" ? plural(setting.trials, "trial") : plural(setting.samples, "sample");
}

// Only what the numbers support.
function howSure(experiment) {
  const { best } = experiment;
  const said = [];
  if (best.violation > 0) said.push("It exceeds a limit: no setting that was measured keeps all of them.");
  if (best.samples === 1) said.push("It was measured once, so nothing is known about its spread: measure it again before you rely on it.");
  else {
    const over = best.trials && best.trials > 1 ? ` in ${plural(best.trials, "trial")}` : "";
    const spread = best.reward_spread ? `, reward ${plusMinus(best.reward, best.reward_spread)}` : best.reward_spread === 0 ? ", all with the same reward" : "";
    const how = best.reward_spread && best.reward_spread_over === "trials" ? " over trials" : "";
    said.push(`${plural(best.samples, "sample")}${over}${spread}${how}.`);
    if (best.reward_spread === null) said.push("They make one reward together, so nothing is known about its spread.");
  }
  const others = best.settings_tried - 1 - (best.exceeding || 0);
  if (best.rivals === 0 && best.standard_error > 0 && others > 0) said.push(`None of the other ${plural(others, "setting")} comes within two standard errors (${number(2 * best.standard_error, 2)}) of it.`);
  if (best.rivals > 0 && best.standard_error === 0) said.push(`${plural(best.rivals, "other setting")} of ${count(best.settings_tried)} did as well.`);
  else if (best.rivals > 0) {
    said.push(`${plural(best.rivals, "other setting")} of ${count(best.settings_tried)} ${best.rivals === 1 ? "comes" : "come"} within two standard errors (${number(2 * best.standard_error, 2)}): the difference may be noise.`);
  }
  if (best.exceeding) said.push(`${plural(best.exceeding, "setting")} ${best.exceeding === 1 ? "exceeds" : "exceed"} a limit ${best.violation > 0 ? "by more " : ""}and ${best.exceeding === 1 ? "doesn't" : "don't"} count here.`);
  if (experiment.per_context.length) said.push("Its reward is the mean over contexts, each by how often it came; the spread is over all of them.");
  if (notMeasured(experiment)) said.push(notMeasured(experiment));
  if (best.failed) said.push(`${plural(best.failed, "trial")} of this setting gave no measurement.`);
  return said.join(" ");
}

const MOST_ROWS = 20; // of the best settings; the others are folded

// In which contexts the best single setting was never measured, and how many draws these are.
function notMeasured(experiment) {
  const { per_context: contexts, mean_gap_over: over, page } = experiment;
  if (!contexts.length || over === null || over > 1 - 1e-9) return null;
  const names = contexts.map((one, index) => (one.single_reward === null ? pairs(page.labels.per_context[index].context) : null)).filter(Boolean);
  const where = names.length === 0 ? "some contexts" : names.length <= 3 ? names.join(" and ") : `${count(names.length)} of ${plural(contexts.length, "context")}`;
  return `It was not measured in ${where} (${percent(1 - over)} of draws).`;
}

function bestSection(experiment) {
  const { best, page } = experiment;
  if (!best) return section("best", "Best settings", null, empty("No trial was measured, so there is no best setting."));
  const settings = Object.entries(page.labels.best.action).map(([name, text]) => [name, { text: visible(text), class: "value" }]);
  const metrics = Object.entries(best.metrics).map(([name, mean]) => [withGoal(experiment, name), right(plusMinus(mean, best.spread[name]))]);
  const fixed = Object.entries(page.fixed);
  return section("best", "Best settings", `First measured in trial ${best.trial}. ${howSure(experiment)}`,
    el("div", { class: "columns" },
      el("div", {}, el("h3", {}, "Settings"), settings.length ? table(["knob", "value"], settings.slice(0, MOST_ROWS), { label: "best settings" }) : empty("There is no knob."),
        settings.length > MOST_ROWS ? folded(`${plural(settings.length - MOST_ROWS, "more knob")}`, table(["knob", "value"], settings.slice(MOST_ROWS), { label: "more of the best settings" })) : null,
        fixed.length ? folded(`${plural(fixed.length, "fixed parameter")}`, table(["parameter", "value"], fixed.map(([name, text]) => [name, { text: visible(text), class: "value" }]))) : null),
      el("div", {}, el("h3", {}, "Measured"),
        table(["", right("mean ± spread")], [[REWARD, right(plusMinus(best.reward, best.reward_spread))], ...metrics], { label: "metrics of the best setting" }))));
}

function contextSection(experiment) {
  const { per_context: contexts, best, page } = experiment;
  const rows = contexts.map((one, index) => [
    pairs(page.labels.per_context[index].context),
    right(`${count(one.drawn)} (${percent(one.share)})`),
    pairs(page.labels.per_context[index].action),
    right(plusMinus(one.reward, one.reward_spread)),
    right(count(one.samples)),
    right(one.single_reward === null ? "not measured" : number(one.single_reward)),
    right([one.gap === null ? "" : number(one.gap), one.gap_note ? `(${one.gap_note})` : ""].filter(Boolean).join(" ")),
  ]);
  const over = notMeasured(experiment) ? ` over the contexts that it was measured in (${percent(experiment.mean_gap_over)} of draws)` : "";
  const mean = experiment.mean_gap === null ? "" : ` On average it loses ${number(experiment.mean_gap)} of reward${over}.`;
  return section("contexts", "Contexts",
    `The best setting in each context, and the gap to it that the best single setting (${pairs(page.labels.best.action)}) leaves.${best ? mean : ""}`,
    table(["context", right("drawn"), "best here", right(REWARD), right("samples"), right("single setting"), right("gap")], rows, { label: "contexts" }));
}

function runSection(run, experiment) {
  const { time } = experiment;
  return section("run", "What was run", null,
    definitions([
      ["scenario", visible(run.scenario)],
      ["experiment", visible(experiment.name)],
      ["folder", visible(run.folder)],
      ["started", instant(time.started_at)],
      ["state", experiment.state + (experiment.code ? ` with exit code ${experiment.code}` : "") + (experiment.ended ? `: ${visible(experiment.ended)}` : "")],
      ["host", time.hosts.map(visible).join(", ")],
      ["slots", time.slots === null ? "" : String(time.slots)],
      ["sessions", String(time.sessions)],
      ["metrics", experiment.metrics.map((one) => withGoal(experiment, one)).join(", ")],
      ["objectives", experiment.objectives.map((one) => `${one.goal} ${visible(one.metric)}${one.limit !== undefined ? ` (limit ${number(one.limit)})` : ""}`).join(", ")],
    ]),
    run.source ? folded("scenario.toml as it was run", el("pre", {}, visible(run.source))) : null);
}
