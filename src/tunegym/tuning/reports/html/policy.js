// What the agent's policy chooses in each context, beside what was measured there.

const MOST_CONTEXTS = 12; // the others are folded

function policyAbout(experiment) {
  const { policy, trials } = experiment;
  const ran = trials.done - (trials.statuses.cancelled || 0);
  const said = ["Its choice when it doesn't explore."];
  if (policy.choices.some((one) => one.chance !== null)) said.push("The chance is how likely it is when the policy explores.");
  if (policy.trials < ran) said.push(`It was saved after ${count(policy.trials)} of ${plural(ran, "trial")}.`);
  const untried = policy.choices.filter((one) => one.samples === 0).length;
  if (untried) said.push(`${untried === policy.choices.length ? "None of its choices was" : `${plural(untried, "choice")} of ${count(policy.choices.length)} ${untried === 1 ? "was" : "were"} never`} measured there.`);
  if (policy.choices.some((one) => one.samples === null)) said.push("A value of a range hardly ever repeats, so nothing is counted at these places.");
  return said.join(" ");
}

function policyRow(one, labels) {
  const { best } = one;
  const measured = one.samples === null ? "" : `${one.samples ? count(one.samples) : "never"}${one.failed ? `, failed ${count(one.failed)}` : ""}`;
  return [
    pairs(labels.context),
    pairs(labels.action),
    right(one.chance === null ? "" : percent(one.chance)),
    right(measured),
    right(one.reward === null ? "" : number(one.reward)),
    best === null ? "" : best.chosen ? "the same" : pairs(labels.best),
    right(best === null || best.chosen ? "" : `${number(best.reward)} (${plural(best.samples, "sample")})`),
  ];
}

// The contexts that came most often first; of ranges places that are spread evenly. The others are folded.
function policySection(experiment) {
  const { policy, page } = experiment;
  if (policy.error) return section("policy", "What the policy chooses", null, empty(`It can't be shown: ${visible(policy.error)}`));
  const { choices } = policy;
  const counted = choices.some((one) => one.samples !== null);
  const shown = [Object.keys(choices[0].context).length > 0, true, choices.some((one) => one.chance !== null), counted, counted, counted, counted];
  const cut = (cells) => cells.filter((_, index) => shown[index]);
  const titles = cut(["context", "choice", right("chance"), right("measured"), right(REWARD), "recommended", right("its reward")]);
  const rows = choices.map((one, index) => cut(policyRow(one, page.labels.policy[index])));
  const every = counted ? 1 : Math.ceil(rows.length / MOST_CONTEXTS);
  const first = rows.filter((_, index) => index % every === 0).slice(0, MOST_CONTEXTS);
  const rest = rows.filter((row) => !first.includes(row));
  return section("policy", "What the policy chooses", policyAbout(experiment), table(titles, first, { label: "what the policy chooses" }),
    rest.length ? folded(plural(rest.length, "more context"), table(titles, rest, { label: "more of what the policy chooses" })) : null);
}
