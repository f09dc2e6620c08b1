// A run's page: errors and notes on top, then one experiment at a time.

function failureBox(run) {
  const [first, ...rest] = run.failure.split("\n");
  const more = rest.join("\n").trim();
  return box("bad", el("strong", {}, "The run ended with an error"), el("p", {}, visible(first || "dse_failure.txt says no more")),
    more ? folded("traceback", el("pre", {}, visible(more))) : null);
}

function noteBoxes(run) {
  const states = run.experiments.map((one) => one.state);
  const command = `tunegym resume ${/^[\w@%+=:,./-]+$/.test(run.folder) ? run.folder : `'${run.folder.replaceAll("'", "'\\''")}'`}`;
  const found = [];
  if (run.failure !== null) found.push(failureBox(run));
  if (states.includes("running")) found.push(box("note", el("strong", {}, "Still running"), el("p", {}, `This page shows what was written until ${instant(run.written_at)}. To see more: tunegym report`)));
  else if (states.some((one) => one === "interrupted" || one === "not started")) {
    found.push(box("note", el("strong", {}, "Not finished"), el("p", {}, "To continue: ", el("code", {}, visible(command)))));
  }
  return found;
}

// Why an experiment is no success, with the most common reason.
function problemBox(experiment) {
  const { problem, trials, reasons } = experiment;
  const none = !trials.statuses.measured && trials.done > 0;
  const title = none ? (trials.done === 1 ? "Its one trial was not measured" : `None of its ${count(trials.done)} trials was measured`) : problem[0].toUpperCase() + problem.slice(1);
  const often = none && reasons.length ? `${reasons[0].count === trials.done ? "Every time" : `Most often (${count(reasons[0].count)} of ${count(trials.done)})`}: ${statusTitle(reasons[0].status)}: ${visible(reasons[0].reason)}` : null;
  return box("bad", el("strong", {}, visible(title)), often ? el("p", {}, often) : null, none ? el("p", {}, el("a", { href: "#outcomes" }, "all reasons")) : null);
}

function experimentNode(run, experiment) {
  const error = experiment.state === "unreadable" ? experiment.damage[0] : experiment.error;
  if (error) return el("div", {}, box("bad", el("strong", {}, "This experiment can't be read"), el("p", {}, visible(error))));
  if (experiment.state === "not started") return el("div", {}, empty("This experiment has not started."));
  if (experiment.live) return liveNode(run, experiment);
  const trials = new Trials(experiment);
  const list = new TrialTable(experiment, trials);
  const open = (row) => list.show(row);
  const measured = trials.measuredRows.length > 0;
  const answer = experiment.agent ? answerSection(experiment) : null; // a plain job has none
  const sections = [
    answer ? evidenceSection(experiment) : null,
    bestSection(experiment),
    experiment.policy ? policySection(experiment) : null,
    experiment.pareto.length ? frontSection(experiment, trials, open) : null,
    trials.count ? rewardSection(trials, open) : null,
    recurringContexts(trials) ? learningSection(trials, open) : null,
    trials.table.curves ? curveSection(trials, open) : null,
    experiment.page.training.length ? trainingSection(experiment) : null,
    trials.knobs.length ? importanceSection(experiment) : null,
    trials.knobs.length > 1 && trials.searchRows.length > 4 ? contourSection(trials, open) : null,
    measured && trials.parameters.length ? knobSection(trials, open) : null,
    measured && trials.parameters.length ? parallelSection(trials, open) : null,
    outcomeSection(experiment),
    timeSection(experiment),
    list.node,
    runSection(run, experiment),
  ].filter(Boolean);
  const links = [answer, ...sections].filter(Boolean).map((one) => el("a", { href: `#${one.id}` }, one.querySelector("h2").textContent));
  return el("div", {}, experiment.problem ? problemBox(experiment) : null, answer, tiles(experiment), ...experiment.page.notes.map((note) => box("note", el("p", {}, visible(note)))),
    el("nav", { class: "sections", "aria-label": "sections" }, ...links), ...sections);
}

function runPage(run) {
  const place = el("main");
  const show = (index) => {
    tabs.forEach((tab, one) => tab.setAttribute("aria-selected", String(one === index)));
    place.replaceChildren(experimentNode(run, run.experiments[index]));
  };
  const state = ({ state, problem }) => el("span", { class: `state ${problem ? "problem" : state.replace(" ", "-")}` }, problem && state !== "failed" ? `${state}, with a problem` : state);
  const tabs = run.experiments.map((experiment, index) =>
    el("button", { type: "button", role: "tab", onclick: () => show(index) }, visible(experiment.name), state(experiment)));
  const started = run.experiments.map((one) => one.time && one.time.started_at).find(Boolean);
  const node = el("div", {},
    el("header", {}, el("h1", {}, visible(run.scenario || "run")), el("p", {}, [started ? `started ${instant(started)}` : null, visible(run.folder)].filter(Boolean).join(" · "))),
    ...noteBoxes(run), el("div", { class: "tabs", role: "tablist", "aria-label": "experiments" }, ...tabs), place,
    el("footer", {}, `Written by tunegym, ${instant(run.written_at)}. This file needs no network.`));
  show(0);
  return node;
}
