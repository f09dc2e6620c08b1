// Live experiments of several runs: their returns over steps.

function liveComparisonTable(entries) {
  const rows = entries.map((entry) => [
    visible(entry.run), visible(entry.experiment), visible(entry.agent || ""), entry.state, right(count(entry.trials)), right(count(entry.measured)),
    right(count(entry.live.episodes)), right(entry.live.mean_return === null ? "none" : number(entry.live.mean_return)), right(number(entry.live.return_spread, 2)),
    right(count(entry.live.mean_return_over)), right(entry.live.steps_per_s ? number(entry.live.steps_per_s, 3) : ""), right(seconds(entry.total_s)),
  ]);
  return table(["run", "experiment", "agent", "state", right("steps"), right("measured"), right("episodes"), right("mean return (max)"), right("spread"), right("over the last"), right("steps per second"), right("total time")], rows, { label: "live runs" });
}

// Each run has its own windows, so the lines are put on the windows of all of them.
function liveSection(facts) {
  const entries = facts.entries.filter((entry) => entry.live);
  const ends = [...new Set(entries.flatMap((entry) => entry.curve.ends))].sort((a, b) => a - b);
  const lines = entries.map((entry, index) => {
    const known = new Map(entry.curve.ends.map((end, at) => [end, entry.curve.returns[at]]));
    return { entry, style: lineStyle(index), values: ends.map((end) => known.get(end) ?? null) };
  });
  const drawn = lines.some((line) => line.values.some((value) => value !== null));
  const tip = (index, { entry, values }) => [["run", visible(entry.run)], ["experiment", visible(entry.experiment)], ["up to step", count(ends[index])], ["mean return", number(values[index], 6)]];
  const made = drawn ? linesPlot({ label: "Return over steps", yTitle: "mean return", ends, lines, tip }) : null;
  const items = lines.map((line) => ({ text: entryName(line.entry, entries), line: true, ...line.style }));
  return section("live", "Live experiments", "Their returns: the mean of the last episodes that the server itself ended.", liveComparisonTable(entries),
    el("h3", {}, "Return over steps"), ...(made ? withRange(made, legend(items)) : [empty("No episode has ended by itself.")]));
}
