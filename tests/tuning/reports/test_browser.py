"""``report.html`` in a real browser: drawn, sorted, filtered, quiet, and nothing leaves the file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tuning.reports.live_journals import GRAVITY, write_live

from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import Choice, PolicyTable
from tunegym.tuning.model.scenario import Objective
from tunegym.tuning.model.trial import Failed, Infeasible, Measured, Pruned, TimedOut, Trial
from tunegym.tuning.reports.page import Known, compare, run_document, write_page
from tunegym.tuning.reports.results import RunResults, load

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CHROMIUM = "/usr/bin/chromium"
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=\"document.body.textContent='owned'\">",
    "\x1b[31mred\x1b[0m \u202egnp.exe",
    "日本 ünïcode {{style}} ${1}",
]
KNOBS = {
    "threads": {"low": 1, "high": 64, "dtype": "int", "log": True},
    "rate": {"low": 0.0, "high": 1.0, "dtype": "float"},
    "flag": {"values": [1, 1.0, True]},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"missing component: chromium ({CHROMIUM})")
    playwright = pytest.importorskip("playwright.sync_api", reason="missing component: playwright")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, "--disable-sync", "--no-first-run"])
        yield started
        started.close()


class Opened:
    """A page that was opened, with what it asked for and what it complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.route("**/*", self._watch)

    def _watch(self, route: Any) -> None:
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def goto(self, path: Path, state: str = "drawn") -> Page:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(f"html[data-{state}=yes]")
        return self.page


Open = Callable[..., Opened]
Written = Callable[..., RunResults]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open a page; at the end none may have complained or asked for anything."""
    pages: list[Opened] = []

    def open_page(width: int = 1400, scheme: Any = "light") -> Opened:
        pages.append(Opened(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)))
        return pages[-1]

    yield open_page
    for one in pages:
        one.page.close()
        assert (one.complaints, one.requests) == ([], [])


def write(results: RunResults, failure: str | None = None, **known: Known) -> Path:
    document = run_document(results, known, failure)
    return write_page(results.folder / "report.html", "a run", document, "h")


def some_trials(count: int, contexts: bool = False) -> Iterator[Trial]:
    rng = random.Random(3)
    for number in range(1, count + 1):
        action = {"threads": rng.randint(1, 64), "rate": rng.random(), "flag": rng.choice([1, 1.0, True])}
        context = {"load": rng.choice(["low", "high"])} if contexts else {}
        chance, reward = rng.random(), action["rate"] + rng.gauss(0, 0.1)
        outcome: Any = Measured(({"m": reward, "latency": 1 / (0.1 + action["rate"])},))
        if chance < 0.3:
            outcome = rng.choice([Failed("it broke"), TimedOut(), Infeasible("refused (x = 1)"), Pruned("hopeless")])
        reports = ((1, reward / 2), (2, reward)) if isinstance(outcome, Measured | Pruned) else ()
        penalty = -1e15
        told = reward if isinstance(outcome, Measured) else penalty
        yield Trial(number, context, action, outcome, told, rng.random(), reports=reports)


@pytest.fixture
def rich(written: Written) -> Path:
    """A page with every section there is."""
    objectives = [Objective("m").as_dict(), Objective("latency", "min", limit=5.0).as_dict()]
    env_params = {"load": {"values": ["low", "high"]}}
    trials = some_trials(150, contexts=True)
    keys = {"metrics": ["m", "latency"], "objectives": objectives}
    declared = {"cmd_args": {"command": "run --number {step}"}}
    results = written(trials, knobs=KNOBS, env_params=env_params, declared=declared, **keys)
    action = {"threads": 4, "rate": 0.123456789, "flag": 1.0}
    choices = tuple(Choice(action, 0.5, {"load": load}) for load in ("low", "high"))
    policies.save(results.folder / "e", PolicyTable("agent", 100, choices))
    return write(results, e=Known(200, {"fixed": 3}))


PAINTED = """() => [...document.querySelectorAll('.plot canvas')].map((canvas) => {
    const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size;
})"""


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_drawn(rich: Path, opened: Open, width: int, scheme: str) -> None:
    page = opened(width, scheme).goto(rich)
    sections = page.eval_on_selector_all("section", "nodes => nodes.map((node) => node.id)")
    assert sections == [
        *("best", "contexts", "policy", "front", "rewards", "learning", "curves", "importance", "knobs", "parallel"),
        *("outcomes", "time", "trials", "run"),
    ]
    painted = page.evaluate(PAINTED)
    assert len(painted) == 4 + 2 + len(KNOBS) + 1, "rewards, curves, front, parallel, one per context, knob, env_param"
    assert min(painted) > 5, "a plot is empty"
    assert page.evaluate("document.documentElement.scrollWidth") == width, "the page itself never scrolls sideways"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(background) < 200) == (scheme == "dark")


def column(page: Page, index: int) -> list[str]:
    return page.locator(f"#trials tbody tr:not(.detail) td:nth-child({index})").all_text_contents()


def test_the_table_sorts(rich: Path, opened: Open) -> None:
    page = opened().goto(rich)
    assert column(page, 1) == [str(number) for number in range(1, 51)]
    page.click("#trials th:nth-child(3) button")
    rewards = [float(text.replace("\u2212", "-")) for text in column(page, 3)]
    assert rewards == sorted(rewards, reverse=True), "the best comes first"
    assert page.get_attribute("#trials th:nth-child(3)", "aria-sort") == "descending"
    page.click("#trials th:nth-child(3) button")
    rewards = [float(text.replace("\u2212", "-")) for text in column(page, 3)]
    assert rewards == sorted(rewards)
    page.click("#trials [aria-label='next rows']")
    page.click("#trials [aria-label='next rows']")
    assert "" in column(page, 3), "what has no reward is last, either way"


def test_the_table_filters(rich: Path, opened: Open) -> None:
    page = opened().goto(rich)
    page.fill("#trials input", "status=failed")
    failed = column(page, 2)
    assert failed
    assert set(failed) == {"failed"}
    page.fill("#trials input", "broke")
    assert column(page, 2) == failed, "reasons are searched, too"
    page.fill("#trials input", "threads>=32 rate<0.5")
    assert column(page, 4)
    assert all(int(text) >= 32 for text in column(page, 4))
    assert all(float(text) < 0.5 for text in column(page, 5))
    page.fill("#trials input", "no such thing")
    assert column(page, 1) == []
    assert "none of 150" in page.inner_text("#trials .told")
    page.fill("#trials input", "")
    page.select_option("#trials select", "timed_out")
    assert set(column(page, 2)) == {"timed out"}


def test_a_row_opens_with_its_command(rich: Path, opened: Open) -> None:
    page = opened().goto(rich)
    page.click("#trials tr[data-row='3'] button")
    assert "run --number 4" in page.inner_text("#trials .detail")
    page.click("#trials tr[data-row='3'] button")
    assert page.locator("#trials .detail").count() == 0


def test_a_point_is_named_and_opens_its_row(rich: Path, opened: Open) -> None:
    page = opened().goto(rich)
    canvas = page.locator("#rewards canvas[role=img]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    for across in range(60, int(box["width"]) - 10, 8):
        canvas.hover(position={"x": across, "y": box["height"] / 2})
        if page.locator(".tip:visible").count():
            break
    assert "reward" in page.inner_text(".tip")
    canvas.click(position={"x": across, "y": box["height"] / 2})
    page.wait_for_selector("#trials .detail")


def test_choices_redraw(rich: Path, opened: Open) -> None:
    page = opened().goto(rich)
    picture = "document.querySelector('#rewards canvas[role=img]').toDataURL()"
    before = page.evaluate(picture)
    page.click("#rewards .choice button:nth-child(2)")
    page.wait_for_function(f"before => {picture} !== before", arg=before)
    assert page.get_attribute("#rewards .choice button:nth-child(2)", "aria-pressed") == "true"


def test_dragging_on_an_axis_keeps_a_part(rich: Path, opened: Open) -> None:
    page = opened().goto(rich)
    canvas = page.locator("#parallel canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 34, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 36, box["y"] + 200, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#parallel p.empty').textContent.includes('lines kept')")
    assert page.locator("#trials .detail").count() == 0, "a drag is no click"
    canvas.dblclick(position={"x": 200, "y": 5})
    page.wait_for_function("() => !document.querySelector('#parallel p.empty').textContent.includes('kept;')")


def test_paper_is_white_whatever_the_screen_is(rich: Path, opened: Open) -> None:
    picture = "document.querySelector('#knobs canvas[role=img]').toDataURL()"
    dark, light = opened(1400, "dark"), opened(1400, "light")
    pictures = []
    for one in (dark, light):
        page = one.goto(rich)
        page.emulate_media(media="print")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        pictures.append(page.evaluate(picture))
    assert pictures[0] == pictures[1]
    dark.page.emulate_media(media="screen")
    dark.page.wait_for_function(f"before => {picture} !== before", arg=pictures[0], timeout=5000)


def test_penalties_do_not_stretch_the_axes(written: Written, opened: Open) -> None:
    """Two runs that differ in their penalties only look the same."""
    pictures = []
    for folder, penalty in (("one", -2.0), ("two", -1e15)):
        trials = [
            Trial(n, {}, {}, Failed("f") if n % 3 == 0 else Measured(({"m": n},)), penalty if n % 3 == 0 else n, 0.1)
            for n in range(1, 30)
        ]
        page = opened().goto(write(written(trials, folder)))
        pictures.append(page.evaluate("document.querySelector('#rewards canvas[role=img]').toDataURL()"))
    assert pictures[0] == pictures[1]


def test_hostile_text_is_text(written: Written, opened: Open) -> None:
    trials = [
        Trial(n, {}, {HOSTILE[1]: text}, Measured(({HOSTILE[0]: float(n)},)), float(n), 0.1)
        for n, text in enumerate(HOSTILE, 1)
    ]
    trials.append(Trial(5, {}, {HOSTILE[1]: HOSTILE[0]}, Failed(" ".join(HOSTILE)), -1e15, 0.1))
    keys = {"metrics": [HOSTILE[0]], "agent": HOSTILE[0], "declared": {"cmd_args": {"callable": " ".join(HOSTILE)}}}
    results = written(trials, knobs={HOSTILE[1]: {"values": HOSTILE}}, **keys)
    for number in range(1, 6):
        place = results.folder / "e" / "trials" / f"{number:06d}"
        place.mkdir(parents=True)
        (place / "stdout.txt").write_text("\n".join(HOSTILE), encoding="utf-8")
    note = Known(None, {HOSTILE[0]: HOSTILE[1]}, "a note " + HOSTILE[1])
    page = opened().goto(write(results, failure="\n".join(HOSTILE), e=note))
    for row in range(5):
        page.click(f"#trials tr[data-row='{row}'] button")
    text = page.inner_text("body")
    assert page.locator("#trials .detail").count() == 5
    for part in (
        "</script><script>alert(1)</script>",
        "<img src=x onerror=",
        "\\x1b[31mred",
        "日本 ünïcode {{style}} ${1}",
    ):
        assert page.inner_text("#trials").count(part) >= 5, part
    assert "\\u202egnp.exe" in text
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_nothing_else_may_run(rich: Path, opened: Open) -> None:
    """Even if markup came in: the page's policy allows its own script and style only, no base and no form."""
    one = opened()
    page = one.goto(rich)
    assert one.complaints == []
    page.evaluate("""() => {
        window.refused = [];
        document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective));
        const script = document.createElement('script');
        script.textContent = 'window.owned = true';
        document.body.append(script);
        const handler = document.createElement('button');
        handler.setAttribute('onclick', 'window.owned = true');
        document.body.append(handler);
        handler.click();
        const style = document.createElement('style');
        style.textContent = 'body { display: none }';
        document.body.append(style);
        const base = document.createElement('base');
        base.href = 'http://127.0.0.1:9/';
        document.head.append(base);
        const form = document.createElement('form');
        form.action = 'http://127.0.0.1:9/';
        document.body.append(form);
        form.submit();
    }""")
    page.wait_for_function("() => refused.includes('form-action')")
    assert {"script-src-elem", "script-src-attr", "style-src-elem", "base-uri"} <= set(page.evaluate("refused"))
    assert page.evaluate("window.owned") is None
    assert page.is_visible("#best")
    one.complaints.clear()


def two_objectives(written: Written, points: list[tuple[float, float]], folder: str = "run") -> Path:
    """A page of trials with more ``m`` and less ``latency`` wanted."""
    objectives = [Objective("m").as_dict(), Objective("latency", "min").as_dict()]
    trials = [
        Trial(n, {}, {"x": n}, Measured(({"m": m, "latency": latency},)), m - latency, 0.1)
        for n, (m, latency) in enumerate(points, 1)
    ]
    knobs = {"x": {"low": 1, "high": 10_000, "dtype": "int"}}
    return write(written(trials, folder, knobs=knobs, metrics=["m", "latency"], objectives=objectives))


def test_a_long_front_is_paged(written: Written, opened: Open) -> None:
    page = opened().goto(two_objectives(written, [(float(n), float(n)) for n in range(1, 2001)]))
    assert "2,000 settings" in page.inner_text("#front .about")
    first = "#front tbody tr:first-child td:last-child"
    assert page.locator("#front tbody tr").count() == 50
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    assert (page.inner_text("#front .pager .told"), page.inner_text(first)) == ("1–50 of 2,000", "2000")
    assert page.is_disabled("#front [aria-label='previous rows']")
    page.click("#front [aria-label='next rows']")
    assert (page.inner_text("#front .pager .told"), page.inner_text(first)) == ("51–100 of 2,000", "1950")


def test_far_measurements_do_not_press_the_front_together(written: Written, opened: Open) -> None:
    """How far out they are is not seen; that they are is, and one may look at all of it."""
    picture = "document.querySelector('#front canvas[role=img]').toDataURL()"
    near = [(n / 10, 1 + n / 10 + n % 3) for n in range(1, 60)]
    pictures = []
    for folder, far in (("one", 1e3), ("two", 1e6)):
        one = opened()
        page = one.goto(two_objectives(written, [*near, (0.05, far), (-far, 9.0)], folder))
        assert "2 measured trials lie farther out" in page.inner_text("#front p.told")
        pictures.append(page.evaluate(picture))
        page.click("#front .choice button:nth-child(2)")
        page.wait_for_function(f"before => {picture} !== before", arg=pictures[-1])
        assert page.inner_text("#front p.told") == ""
    assert pictures[0] == pictures[1]
    page = opened().goto(two_objectives(written, near, "three"))
    assert page.locator("#front .choice, #front p.told").count() == 0


RANGE = "[aria-label=range] button:nth-child(2)"
PLOTS = ("#rewards", "#knobs", "#parallel")


def with_far_ones(count: int, far: float) -> list[Trial]:
    """Rewards from 0 to 1, of which ``count`` are ``far`` instead; the first trial is one of them."""
    rng = random.Random(5)
    made = []
    for number in range(1, 61):
        reward = far if (number - 1) % 12 == 0 and number <= 12 * count else rng.random()
        action = {"x": rng.random(), "flag": rng.choice(["a", "b"])}
        made.append(Trial(number, {}, action, Measured(({"m": reward},)), reward, 0.1))
    return made


XY = {"x": {"low": 0.0, "high": 1.0, "dtype": "float"}, "flag": {"values": ["a", "b"]}}


def picture_of(place: str) -> str:
    return f"[...document.querySelectorAll('{place} canvas[role=img]')].map((one) => one.toDataURL()).join()"


def test_far_rewards_do_not_flatten_the_plots(written: Written, opened: Open) -> None:
    """How far out they are is not seen; that they are is, and one may look at all of it."""
    pictures = []
    for folder, far in (("one", -1e3), ("two", -1e12)):
        one = opened()
        page = one.goto(write(written(with_far_ones(5, far), folder, knobs=XY)))
        seen = [page.evaluate(picture_of(place)) for place in PLOTS]
        page.click("#rewards .choice button:nth-child(2)")
        page.wait_for_function(f"before => {picture_of('#rewards')} !== before", arg=seen[0])
        pictures.append([*seen, page.evaluate(picture_of("#rewards"))])
        for place in PLOTS:
            assert "5 measured trials lie farther out" in page.inner_text(f"{place} p.told")
            before = page.evaluate(picture_of(place))
            page.click(f"{place} {RANGE}")
            page.wait_for_function(f"before => {picture_of(place)} !== before", arg=before)
            assert page.inner_text(f"{place} p.told") == ""
    assert pictures[0] == pictures[1]


def of_rewards(*rewards: float) -> list[Trial]:
    many = len(rewards)
    return [
        Trial(n, {}, {"x": n / many, "flag": "a"}, Measured(({"m": one},)), one, 0.1)
        for n, one in enumerate(rewards, 1)
    ]


@pytest.mark.parametrize(
    ("trials", "cut"),
    [
        pytest.param(with_far_ones(0, 0.0), False, id="none is far"),
        pytest.param(with_far_ones(1, 1e6), False, id="the best is never far out"),
        pytest.param(of_rewards(*[1.0, 1.0, 1.0, 1.0, 0.0] * 6), False, id="two answers, not a far one"),
        pytest.param(of_rewards(*[1.0, 1.0, 1.0, 1.0, -1e12] * 6), True, id="mostly the same"),
    ],
)
def test_which_rewards_are_far_out(written: Written, opened: Open, trials: list[Trial], cut: bool) -> None:
    page = opened().goto(write(written(trials, knobs=XY)))
    assert page.locator(RANGE).count() == (len(PLOTS) if cut else 0)


def test_what_a_limit_costs_does_not_flatten_the_plots(written: Written, opened: Open) -> None:
    """Even where most trials exceed it."""
    trials = []
    for n in range(1, 61):
        exceeds = n % 5 < 3
        reward = (n % 7) / 70 - (n / 2 if exceeds else 0)
        metrics = {"m": (n % 7) / 70, "latency": 10.0 if exceeds else 1.0}
        trials.append(Trial(n, {}, {"x": n / 60, "flag": "a"}, Measured((metrics,)), reward, 0.1))
    objectives = [Objective("m").as_dict(), Objective("latency", "min", weight=0.0, limit=2.0).as_dict()]
    page = opened().goto(write(written(trials, knobs=XY, metrics=["m", "latency"], objectives=objectives)))
    for place in PLOTS:
        assert "36 measured trials lie farther out" in page.inner_text(f"{place} p.told")
        assert page.inner_text(f"{place} [aria-label=range] button:nth-child(1)") == "near the best"


def test_far_rewards_do_not_flatten_a_comparison(runs: Written, opened: Open) -> None:
    """A run that did worse is not left out."""
    results = [runs(name, e={"trials": with_far_ones(5, -1e12), "knobs": XY}) for name in ("one", "two")]
    results.append(runs("three", e={"trials": with_far_ones(5, -1e12)[:1], "knobs": XY}))
    page = opened().goto(write_page(results[0].folder / "compare.html", "c", compare(results).facts, "h"))
    assert "farther out" in page.inner_text("#group-0 p.told")
    before = page.evaluate(picture_of("#group-0"))
    page.click(RANGE)
    page.wait_for_function(f"before => {picture_of('#group-0')} !== before", arg=before)
    assert page.inner_text("#group-0 p.told") == ""
    results = [runs(f"r{best}", e={"trials": of_rewards(best), "knobs": XY}) for best in (0.1, 0.85, 0.9)]
    page = opened().goto(write_page(results[0].folder / "compare.html", "c", compare(results).facts, "h"))
    assert page.locator(RANGE).count() == 0


def test_a_failure_is_on_top(rich: Path, runs: Written, opened: Open) -> None:
    results = runs("failed", e={"trials": some_trials(20), "knobs": KNOBS, "ended": None}, later={"trials": None})
    page = opened().goto(write(results, failure="e was ended by RuntimeError: boom\n\nTraceback ...\n  in here"))
    box = page.locator(".box.bad")
    assert "RuntimeError: boom" in box.inner_text()
    assert "in here" not in box.inner_text(), "the traceback is folded"
    box.locator("summary").click()
    assert "in here" in box.inner_text()
    above = page.evaluate("document.querySelector('.box.bad').getBoundingClientRect().top")
    assert above < page.evaluate("document.querySelector('.tiles').getBoundingClientRect().top")
    assert f"tunegym resume {results.folder}" in page.inner_text(".box.note")
    page.click("[role=tab]:nth-child(2)")
    assert "has not started" in page.inner_text("main")


@pytest.mark.parametrize("trials", [[], [Trial(1, {}, {"x": 1}, Failed("f"), -1e15, 0.1)]])
def test_nothing_measured(written: Written, opened: Open, trials: list[Trial]) -> None:
    page = opened().goto(write(written(trials, knobs={"x": {"values": [1, 2]}})), "ready")
    assert "no best setting" in page.inner_text("#best")
    assert page.locator("#rewards canvas").count() == 0, "there is no axis of rewards without a reward"


def test_an_experiment_without_a_measurement_is_no_success(runs: Written, opened: Open) -> None:
    reasons = [Failed("<b>exited</b> with 3")] * 4 + [TimedOut("too slow")]
    trials = [Trial(n, {}, {"x": 1}, reason, -1e15, 0.1) for n, reason in enumerate(reasons, 1)]
    fine = [Trial(1, {}, {"x": 1}, Measured(({"m": 1.0},)), 1.0, 0.1)]
    results = runs("run", e={"trials": trials, "code": 1}, coded={"trials": fine, "code": 7}, fine={"trials": fine})
    page = opened().goto(write(results), "ready")
    box = page.inner_text("main .box.bad")
    assert "None of its 5 trials was measured" in box
    assert "Most often (4 of 5): failed: <b>exited</b> with 3" in box
    above = page.evaluate("document.querySelector('.box.bad').getBoundingClientRect().top")
    assert above < page.evaluate("document.querySelector('.tiles').getBoundingClientRect().top")
    assert "Nothing was measured" in page.inner_text("#rewards")
    states = page.eval_on_selector_all(".state", "nodes => nodes.map((node) => [node.className, node.textContent])")
    bad = ["state problem", "finished, with a problem"]
    assert states == [bad, bad, ["state finished", "finished"]]
    page.click("[role=tab]:nth-child(2)")
    assert page.inner_text("main .box.bad") == "It ended with code 7 (the agent ended)"
    page.click("[role=tab]:nth-child(3)")
    assert page.locator(".box.bad").count() == 0


def test_contexts_without_the_best_setting_are_named(written: Written, opened: Open) -> None:
    made = [(1, "text", 9.0)] * 6 + [(2, "text", 8.0)] * 2 + [(2, "noise", 1.0)] * 2
    trials = [
        Trial(n, {"data": data}, {"x": x}, Measured(({"m": reward},)), reward, 0.1)
        for n, (x, data, reward) in enumerate(made, 1)
    ]
    keys = {"knobs": {"x": {"values": [1, 2]}}, "env_params": {"data": {"values": ["text", "noise"]}}}
    page = opened().goto(write(written(trials, **keys)))
    assert "It was not measured in data=noise (20 % of draws)." in page.inner_text("#best .about")
    assert "over the contexts that it was measured in (80 % of draws)" in page.inner_text("#contexts .about")
    assert page.locator(RANGE).count() == 0, "a context with other rewards is not far out"


def test_sixty_knobs_are_folded(written: Written, opened: Open) -> None:
    rng = random.Random(2)
    names = [f"k{index:02d}" for index in range(60)]
    trials = []
    for number in range(1, 201):
        action = {name: rng.random() for name in names}
        reward = 3 * action["k50"] + action["k40"] + 0.1 * rng.random()
        trials.append(Trial(number, {}, action, Measured(({"m": reward},)), reward, 0.1))
    knobs = {name: {"low": 0.0, "high": 1.0, "dtype": "float"} for name in names}
    page = opened().goto(write(written(trials, knobs=knobs)))
    assert page.locator("#best tbody tr:visible").count() == 20 + 2, "the reward and the metric are beside them"
    page.click("#best summary:has-text('40 more knobs')")
    assert page.locator("#best tbody tr:visible").count() == 60 + 2
    captions = "#knobs figcaption"
    assert page.locator(f"{captions}:visible").all_text_contents()[:2] == ["k50", "k40"], "what matters most is first"
    assert page.locator(f"{captions}:visible").count() == 12
    page.click("#knobs summary:has-text('show all 60 plots')")
    assert page.locator(f"{captions}:visible").count() == 60
    drawn = "() => [...document.querySelectorAll('#knobs canvas[role=img]')].every((one) => one.width !== 300)"
    page.wait_for_function(drawn, timeout=10_000)
    assert min(page.evaluate(PAINTED)) > 5


def test_twenty_thousand_trials(written: Written, opened: Open) -> None:
    page = opened().goto(write(written(some_trials(20_000), knobs=KNOBS)))
    assert "1–50 of 20,000 trials" in page.inner_text("#trials .told")
    page.click("#trials th:nth-child(3) button")
    assert len(column(page, 1)) == 50
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    page.fill("#trials input", "status=measured")
    assert "of 20,000" in page.inner_text("#trials .told")
    assert min(page.evaluate(PAINTED)) > 5


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (400, "light")])
def test_comparison(runs: Written, opened: Open, width: int, scheme: str) -> None:
    journal = {"trials": list(some_trials(40)), "knobs": KNOBS, "agent": HOSTILE[0]}
    results = [runs(name, e=journal, own={**journal, "metrics": [name]}) for name in ("one", "two")]
    path = write_page(results[0].folder / "compare.html", "c", compare(results).facts, "h")
    page = opened(width, scheme).goto(path)
    assert page.locator("#table tbody tr").count() == 4
    assert "own: the metrics differ" in page.inner_text(".box.note")
    assert page.locator("section[id^=group]").count() == 2
    assert min(page.evaluate(PAINTED)) > 5
    page.click(".grouping button:nth-child(2)")
    assert page.locator("section[id^=group]").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") == width


def by_context(contexts: int, count: int) -> Iterator[Trial]:
    rng = random.Random(5)
    for number in range(1, count + 1):
        load, x = rng.randrange(contexts), rng.randint(1, 3)
        reward = 10.0**load * (1 if x == 1 + load % 3 else 0.5) * rng.gauss(1, 0.05)
        yield Trial(number, {"load": load}, {"x": x}, Measured(({"m": reward},)), reward, 0.1)


def learned(written: Written, contexts: int, count: int) -> Path:
    env_params = {"load": {"values": list(range(contexts))}}
    results = written(by_context(contexts, count), knobs={"x": {"values": [1, 2, 3, 4]}}, env_params=env_params)
    choices = tuple(Choice({"x": 4 if load == 1 else 1 + load % 3}, 0.875, {"load": load}) for load in range(contexts))
    policies.save(results.folder / "e", PolicyTable("agent", count - 10, choices))
    return write(results)


def test_what_the_policy_chooses(written: Written, opened: Open) -> None:
    page = opened().goto(learned(written, 3, 90))
    rows = [row.locator("td").all_text_contents() for row in page.locator("#policy tbody tr").all()]
    assert [row[:3] for row in rows] == [
        ["load=0", "x=1", "88 %"],
        ["load=1", "x=4", "88 %"],
        ["load=2", "x=3", "88 %"],
    ]
    assert (rows[1][3], rows[1][4], rows[1][5]) == ("never", "", "x=2")
    assert "sample" in rows[1][6]
    assert rows[0][5:] == ["the same", ""]
    assert "\u00b1" in rows[0][4]
    about = page.inner_text("#policy .about")
    assert "saved after 80 of 90 trials" in about
    assert "1 choice of 3 was never measured there" in about
    assert page.locator("#learning figcaption").all_inner_texts()[0].startswith("load=")


def test_many_contexts_are_folded(written: Written, opened: Open, wait_until: Callable[..., None]) -> None:
    one = opened(400)
    path = learned(written, 60, 20_000)
    assert path.stat().st_size < 4_000_000
    page = one.goto(path)
    assert page.locator("#policy > .scroll tbody tr").count() == 12
    assert page.locator("#policy details tbody tr").count() == 48
    assert page.locator("#learning > .figures figure").count() == 12
    assert page.locator("#learning details figure").count() == 36
    assert "12 more contexts are not shown" in page.inner_text("#learning .empty")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.locator("#learning summary").click()
    drawn = "() => [...document.querySelectorAll('#learning details canvas')].every((canvas) => canvas.width > 300)"
    wait_until(lambda: page.evaluate(drawn), "the folded plots")


def test_a_policy_without_contexts_and_one_that_is_damaged(runs: Written, opened: Open) -> None:
    trials = [Trial(n, {}, {"x": n % 3 + 1}, Measured(({"m": n % 3},)), n % 3, 0.1) for n in range(1, 10)]
    knobs = {"x": {"values": [1, 2, 3]}}
    results = runs("two", good={"trials": trials, "knobs": knobs}, bad={"trials": trials, "knobs": knobs})
    policies.save(results.folder / "good", PolicyTable("agent", 9, (Choice({"x": 3}),)))
    (results.folder / "bad" / "policy").mkdir()
    (results.folder / "bad" / "policy" / "policy.json").write_text("</script><b>")
    page = opened().goto(write(results))
    assert page.locator("#policy th").all_text_contents()[0] == "choice"
    assert page.locator("#policy td").all_text_contents()[:3] == ["x=3", "3", "2"], "the chance is unknown"
    page.get_by_role("tab", name="bad").click()
    assert "is damaged" in page.inner_text("#policy .empty")


def test_places_of_a_range_are_spread(written: Written, opened: Open) -> None:
    trials = [Trial(n, {"size": n / 50}, {"x": 1}, Measured(({"m": n},)), n, 0.1) for n in range(1, 41)]
    env_params = {"size": {"low": 0.0, "high": 1.0, "dtype": "float"}}
    results = written(trials, knobs={"x": {"values": [1, 2]}}, env_params=env_params)
    choices = tuple(Choice({"x": 1}, 0.5, {"size": place / 32}) for place in range(33))
    policies.save(results.folder / "e", PolicyTable("agent", 40, choices))
    page = opened().goto(write(results))
    assert page.locator("#policy > .scroll th").all_text_contents() == ["context", "choice", "chance"]
    places = page.locator("#policy > .scroll td:first-child").all_text_contents()
    assert (places[0], places[-1], len(places)) == ("size=0.0", "size=0.9375", 11)
    assert page.locator("#policy details tbody tr").count() == 22
    assert page.locator("#learning").count() == 0, "no context comes again"


# live experiments -------------------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A page of a live experiment with every section there is, and hostile words wherever they may come from."""
    rng = random.Random(3)
    episodes = (
        {
            "length": rng.randint(5, 40),
            "reward": rng.random(),
            "context": {"gravity": rng.choice([9.8, 20.0])},
            "failing": 2 if rng.random() < 0.1 else None,
            "reason": rng.choice(HOSTILE),
        }
        for _ in range(200)
    )
    write_live(tmp_path / "run", episodes, env_params=GRAVITY)
    experiment = tmp_path / "run" / "e"
    for at in range(10):
        policies.add_training(experiment, at * 400, {"train/loss": 1 / (1 + at), HOSTILE[0]: at})
    (experiment / "policy" / "model.zip").write_bytes(b"zip")
    return write(load(tmp_path / "run"), e=Known(10_000))


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_live_experiment_is_drawn(live: Path, opened: Open, width: int, scheme: str) -> None:
    page = opened(width, scheme).goto(live)
    sections = page.eval_on_selector_all("section", "nodes => nodes.map((node) => node.id)")
    assert sections == [
        *("returns", "contexts", "lengths", "rewards", "training", "policy", "outcomes", "time", "run"),
    ]
    assert min(page.evaluate(PAINTED)) > 2
    assert "PPO.load" in page.inner_text("#policy")
    assert HOSTILE[0] in page.inner_text("#outcomes")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.hover("#returns canvas[role=img]")


def test_live_runs_are_compared(live: Path, tmp_path: Path, opened: Open) -> None:
    write_live(tmp_path / "other", [{"length": 7}, {"length": 9}])
    results = [load(tmp_path / "run"), load(tmp_path / "other")]
    path = write_page(tmp_path / "compare.html", "compared", compare(results).facts, "h")
    page = opened().goto(path)
    assert page.eval_on_selector_all("section", "nodes => nodes.map((node) => node.id)") == ["live"]
    assert "mean return" in page.inner_text("#live")
    assert min(page.evaluate(PAINTED)) > 2


def test_a_live_experiment_without_a_step(tmp_path: Path, opened: Open) -> None:
    write_live(tmp_path / "run", [], code=1, ended="the server was lost")
    page = opened().goto(write(load(tmp_path / "run")), "ready")
    assert "It took no step" in page.inner_text("main")
