"""``report.html`` in a real browser: drawn, sorted, filtered, quiet, and nothing leaves the file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tuning.reports.live_journals import GRAVITY, write_live

from tunegym.tuning.agents import policies
from tunegym.tuning.agents.policies import PolicyChoice, PolicyTable
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
Written = Callable[..., RunResults]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"missing component: chromium ({CHROMIUM})")
    playwright = pytest.importorskip("playwright.sync_api", reason="missing component: playwright")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, "--disable-sync", "--no-first-run"])
        yield started
        started.close()


class Opener:
    """Opens pages, and keeps what they ask for and complain about."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.pages: list[Page] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __call__(self, path: Path, width: int = 1400, scheme: Any = "light", state: str = "drawn") -> Page:
        page = self._browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.pages.append(page)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.route("**/*", self._watch)
        page.goto(path.as_uri())
        page.wait_for_selector(f"html[data-{state}=yes]")
        return page

    def _watch(self, route: Any) -> None:
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


@pytest.fixture
def show(browser: Browser) -> Iterator[Opener]:
    """Open a page; at the end none may have complained or asked for anything."""
    opener = Opener(browser)
    yield opener
    for page in opener.pages:
        page.close()
    assert (opener.complaints, opener.requests) == ([], [])


def write(results: RunResults, failure: str | None = None, **known: Known) -> Path:
    return write_page(results.folder / "report.html", "a run", run_document(results, known, failure), "h")


def write_comparison(results: list[RunResults]) -> Path:
    return write_page(results[0].folder / "compare.html", "c", compare(results).facts, "h")


def some_trials(count: int, contexts: bool = False) -> Iterator[Trial]:
    """Trials of every outcome, with penalties of -1e15."""
    rng = random.Random(3)
    for number in range(1, count + 1):
        action = {"threads": rng.randint(1, 64), "rate": rng.random(), "flag": rng.choice([1, 1.0, True])}
        context = {"load": rng.choice(["low", "high"])} if contexts else {}
        chance, reward = rng.random(), action["rate"] + rng.gauss(0, 0.1)
        outcome: Any = Measured(({"m": reward, "latency": 1 / (0.1 + action["rate"])},))
        if chance < 0.3:
            outcome = rng.choice([Failed("it broke"), TimedOut(), Infeasible("refused (x = 1)"), Pruned("hopeless")])
        reports = ((1, reward / 2), (2, reward)) if isinstance(outcome, Measured | Pruned) else ()
        told = reward if isinstance(outcome, Measured) else -1e15
        yield Trial(number, context, action, outcome, told, rng.random(), reports=reports)


BASELINE = {"threads": 4, "rate": 0.25, "flag": 1}


def some_rounds(first: int) -> Iterator[Trial]:
    """Rounds of the baseline and of a better setting in two contexts."""
    arms = [(context, rate) for _ in range(4) for context in ("low", "high") for rate in (0.25, 0.75)]
    for number, (context, rate) in enumerate(arms, first):
        reward = rate + 0.01 * (number % 3)
        outcome = Measured(({"m": reward, "latency": 1 / (0.1 + rate)},))
        yield Trial(number, {"load": context}, {**BASELINE, "rate": rate}, outcome, reward, 0.5, phase="confirm")


def measured(
    rewards: Iterable[float], action: Callable[[int], dict[str, Any]] = lambda n: {"x": n}, metric: str = "m"
) -> list[Trial]:
    """Measured trials whose metric is the reward."""
    return [Trial(n, {}, action(n), Measured(({metric: one},)), one, 0.1) for n, one in enumerate(rewards, 1)]


def save_policy(folder: Path, learned: int, choices: Iterable[tuple[dict[str, Any], Mapping[str, Any]]]) -> None:
    made = tuple(PolicyChoice(action, 0.875, context) for action, context in choices)
    policies.save(folder, PolicyTable("agent", learned, made))


def picture_of(place: str) -> str:
    return f"[...document.querySelectorAll('{place} canvas[role=img]')].map((one) => one.toDataURL()).join()"


def click_redraws(page: Page, button: str, place: str) -> None:
    """A click on a button changes the picture."""
    before = page.evaluate(picture_of(place))
    page.click(button)
    page.wait_for_function(f"before => {picture_of(place)} !== before", arg=before)


def sections(page: Page) -> list[str]:
    return page.eval_on_selector_all("section", "nodes => nodes.map((node) => node.id)")


def column(page: Page, index: int) -> list[str]:
    return page.locator(f"#trials tbody tr:not(.detail) td:nth-child({index})").all_text_contents()


WIDTH = "document.documentElement.scrollWidth"
ELEMENTS = "document.querySelectorAll('*').length"
PAINTED = """() => [...document.querySelectorAll('.plot canvas')].map((canvas) => {
    const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size;
})"""


# a page with every section --------------------------------------------------------------------------------


@pytest.fixture
def rich(written: Written) -> Path:
    objectives = [Objective("m").as_dict(), Objective("latency", "min", limit=5.0).as_dict()]
    results = written(
        [*some_trials(150, contexts=True), *some_rounds(151)],
        knobs=KNOBS,
        baseline=BASELINE,
        confirm={"mode": "auto"},
        env_params={"load": {"values": ["low", "high"]}},
        metrics=["m", "latency"],
        objectives=objectives,
        goals={"m": "max", "latency": "min"},
        declared={"cmd_args": {"command": "run --number {step}"}},
    )
    action = {"threads": 4, "rate": 0.123456789, "flag": 1.0}
    save_policy(results.folder / "e", 100, [(action, {"load": load}) for load in ("low", "high")])
    return write(results, e=Known(200, {"fixed": 3}))


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light")])
def test_everything_is_drawn(rich: Path, show: Opener, width: int, scheme: str) -> None:
    page = show(rich, width, scheme)
    assert sections(page) == [
        *("answer", "evidence", "best", "policy", "front", "rewards", "learning", "curves", "importance", "contour"),
        *("knobs", "parallel", "outcomes", "time", "trials", "run"),
    ]
    painted = page.evaluate(PAINTED)
    answers, others = 3, 4  # over all and in each context; rewards, curves, contour, parallel
    assert len(painted) == answers + others + 2 + len(KNOBS) + 1, "and one per context, knob and env_param"
    assert min(painted) > 5, "a plot is empty"
    assert page.evaluate(WIDTH) == width, "the page itself never scrolls sideways"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(background) < 200) == (scheme == "dark")


def test_the_answer_comes_first(rich: Path, show: Opener) -> None:
    """One sentence over all, one for each context, and a picture of each; any two knobs can be seen together."""
    page = show(rich)
    assert page.locator("main section").first.get_attribute("id") == "answer"
    assert "sure" in page.inner_text("#answer .lead")
    assert "gain on your settings" in page.inner_text(".tiles").lower()
    assert page.locator("#answer .sentences li").count() == 2
    assert page.locator("#answer figcaption").all_inner_texts() == ["over all contexts", "load=low", "load=high"]
    assert "150 search, 16 confirm" in page.inner_text("#evidence dl")
    before = page.evaluate(picture_of("#contour"))
    page.select_option("#contour select >> nth=0", "flag")
    page.wait_for_function(f"before => {picture_of('#contour')} !== before", arg=before)


def test_the_table_sorts_and_opens_rows(rich: Path, show: Opener) -> None:
    page = show(rich)
    assert column(page, 1) == [str(number) for number in range(1, 51)]
    heads = page.locator("#trials thead th").all_text_contents()
    assert [heads[3], *heads[-3:-1]] == ["reward (max)", "m (max)", "latency (min)"]
    for order in ("descending", "ascending"):
        page.click("#trials th:nth-child(4) button")
        rewards = [float(text.replace("\u2212", "-")) for text in column(page, 4)]
        assert rewards == sorted(rewards, reverse=order == "descending"), "the best comes first"
        assert page.get_attribute("#trials th:nth-child(4)", "aria-sort") == order
    page.click("#trials [aria-label='next rows']")
    page.click("#trials [aria-label='next rows']")
    assert "" in column(page, 4), "trials without a reward are last, either way"
    page.fill("#trials input", "status=measured")
    number = column(page, 1)[0]
    for opens in (True, False):
        page.click("#trials tbody tr:first-child button")
        assert page.locator("#trials .detail").count() == opens
        assert not opens or f"run --number {number}" in page.inner_text("#trials .detail")


def test_the_table_filters(rich: Path, show: Opener) -> None:
    page = show(rich)
    page.fill("#trials input", "status=failed")
    failed = column(page, 2)
    assert set(failed) == {"failed"}
    page.fill("#trials input", "broke")
    assert column(page, 2) == failed, "reasons are searched, too"
    page.fill("#trials input", "threads>=32 rate<0.5")
    assert column(page, 5)
    assert all(int(text) >= 32 for text in column(page, 5))
    assert all(float(text) < 0.5 for text in column(page, 6))
    page.fill("#trials input", "no such thing")
    assert column(page, 1) == []
    assert "none of 166" in page.inner_text("#trials .told")
    page.fill("#trials input", "")
    page.select_option("#trials select", "timed_out")
    assert set(column(page, 2)) == {"timed out"}


def test_plots_answer_the_mouse(rich: Path, show: Opener) -> None:
    """A point is named and opens its row; a choice redraws; a drag on an axis keeps a part, and is no click."""
    page = show(rich)
    click_redraws(page, "#rewards .choice button:nth-child(2)", "#rewards")
    assert page.get_attribute("#rewards .choice button:nth-child(2)", "aria-pressed") == "true"
    canvas = page.locator("#parallel canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 34, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 36, box["y"] + 200, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#parallel p.empty').textContent.includes('lines kept')")
    assert page.locator("#trials .detail").count() == 0
    canvas.dblclick(position={"x": 200, "y": 5})
    page.wait_for_function("() => !document.querySelector('#parallel p.empty').textContent.includes('kept;')")
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


def test_paper_is_white_whatever_the_screen_is(rich: Path, show: Opener) -> None:
    picture = "document.querySelector('#knobs canvas[role=img]').toDataURL()"
    pictures = []
    for scheme in ("light", "dark"):
        page = show(rich, scheme=scheme)
        page.emulate_media(media="print")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        pictures.append(page.evaluate(picture))
    assert pictures[0] == pictures[1]
    page.emulate_media(media="screen")
    page.wait_for_function(f"before => {picture} !== before", arg=pictures[0], timeout=5000)


def test_nothing_else_may_run(rich: Path, show: Opener) -> None:
    """Even if markup came in: the page's policy allows its own script and style only, no base and no form."""
    page = show(rich)
    assert show.complaints == []
    page.evaluate("""() => {
        window.refused = [];
        document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective));
        const put = (place, name, set) => place.append(Object.assign(document.createElement(name), set));
        put(document.body, 'script', { textContent: 'window.owned = true' });
        put(document.body, 'style', { textContent: 'body { display: none }' });
        put(document.body, 'img', { src: 'http://127.0.0.1:9/seen.png' });
        fetch('http://127.0.0.1:9/').catch(() => 0);
        put(document.head, 'base', { href: 'http://127.0.0.1:9/' });
        const handler = document.createElement('button');
        handler.setAttribute('onclick', 'window.owned = true');
        document.body.append(handler);
        handler.click();
        const form = Object.assign(document.createElement('form'), { action: 'http://127.0.0.1:9/' });
        document.body.append(form);
        form.submit();
    }""")
    page.wait_for_function("() => refused.includes('form-action')")
    refused = {"script-src-elem", "script-src-attr", "style-src-elem", "base-uri", "img-src", "connect-src"}
    assert refused <= set(page.evaluate("refused"))
    assert page.evaluate("window.owned") is None
    assert page.is_visible("#best")
    show.complaints.clear()


def test_hostile_text_is_text(written: Written, show: Opener) -> None:
    trials = measured(range(1, 5), lambda n: {HOSTILE[1]: HOSTILE[n - 1]}, HOSTILE[0])
    trials.append(Trial(5, {}, {HOSTILE[1]: HOSTILE[0]}, Failed(" ".join(HOSTILE)), -1e15, 0.1))
    keys = {"metrics": [HOSTILE[0]], "agent": HOSTILE[0], "declared": {"cmd_args": {"callable": " ".join(HOSTILE)}}}
    results = written(trials, knobs={HOSTILE[1]: {"values": HOSTILE}}, **keys)
    for number in range(1, 6):
        place = results.folder / "e" / "trials" / f"{number:06d}"
        place.mkdir(parents=True)
        (place / "stdout.txt").write_text("\n".join(HOSTILE), encoding="utf-8")
    known = Known(None, {HOSTILE[0]: HOSTILE[1]}, "a note " + HOSTILE[1])
    page = show(write(results, failure="\n".join(HOSTILE), e=known))
    for row in range(5):
        page.click(f"#trials tr[data-row='{row}'] button")
    assert page.locator("#trials .detail").count() == 5
    for part in (HOSTILE[0], "<img src=x onerror=", "\\x1b[31mred", HOSTILE[3], "\\u202egnp.exe"):
        assert page.inner_text("#trials").count(part) >= 5, part
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


# far values -----------------------------------------------------------------------------------------------

RANGE = "[aria-label=range] button:nth-child(2)"
PLOTS = ("#rewards", "#knobs", "#parallel")
XY = {"x": {"low": 0.0, "high": 1.0, "dtype": "float"}, "flag": {"values": ["a", "b"]}}
BOTH = [Objective("m").as_dict(), Objective("latency", "min").as_dict()]
LIMITED = [Objective("m").as_dict(), Objective("latency", "min", weight=0.0, limit=2.0).as_dict()]


def of_rewards(*rewards: float) -> list[Trial]:
    return measured(rewards, lambda n: {"x": n / len(rewards), "flag": "ab"[n % 2]})


def with_far_ones(far: float, count: int = 5) -> list[Trial]:
    """Rewards from 0 to 1, of which ``count`` are ``far`` instead; the first trial is one of them."""
    rng = random.Random(5)
    return of_rewards(*(far if n % 12 == 0 and n < 12 * count else rng.random() for n in range(60)))


def two_metrics(points: Iterable[tuple[float, float]], cost: float = 1.0) -> list[Trial]:
    return [
        Trial(n, {}, {"x": n / 10_000, "flag": "a"}, Measured(({"m": m, "latency": late},)), m - cost * late, 0.1)
        for n, (m, late) in enumerate(points, 1)
    ]


NEAR = [(n / 10, 1 + n / 10 + n % 3) for n in range(1, 60)]
OVER = [((n % 7) / 70, n / 2 + 10.0 if n % 5 < 3 else 1.0) for n in range(1, 61)]
PENALTIES = [Trial(n, {}, {"x": 0.5, "flag": "a"}, Failed("f"), -1e12, 0.1) for n in range(61, 70)]


@pytest.mark.parametrize(
    ("trials", "objectives", "places", "told"),
    [
        pytest.param(with_far_ones(1e6, 1), None, (), "", id="the best is never far out"),
        pytest.param(of_rewards(*[1.0, 1.0, 1.0, 1.0, 0.0] * 6), None, (), "", id="two answers, not a far one"),
        pytest.param(of_rewards(*[1.0, 1.0, 1.0, 1.0, -1e12] * 6), None, PLOTS, "6 measured", id="mostly the same"),
        pytest.param([*with_far_ones(-1e12), *PENALTIES], None, PLOTS, "5 measured", id="penalties are no rewards"),
        pytest.param(two_metrics(NEAR), BOTH, (), "", id="a front without far points"),
        pytest.param(two_metrics([*NEAR, (0.05, 1e3), (-1e6, 9.0)]), BOTH, ("#front",), "2 measured", id="a front"),
        pytest.param(two_metrics(OVER), LIMITED, PLOTS, "36 measured", id="most exceed a limit"),
    ],
)
def test_far_values_do_not_flatten_the_plots(
    written: Written, show: Opener, trials: list[Trial], objectives: Any, places: tuple[str, ...], told: str
) -> None:
    """That they are far out is said, and one may look at all of it. With limits, the trials that keep them count."""
    keys = {"metrics": ["m", "latency"], "objectives": objectives} if objectives else {}
    page = show(write(written(trials, knobs=XY, **keys)))
    if objectives is not BOTH:
        assert page.locator(RANGE).count() == len(places)
    assert page.locator(f"#front {RANGE}, #front p.told").count() == 2 * ("#front" in places)
    for place in places:
        assert f"{told} trials lie farther out" in page.inner_text(f"{place} p.told")
        if objectives is LIMITED:
            assert page.inner_text(f"{place} [aria-label=range] button:nth-child(1)") == "near the best"
        click_redraws(page, f"{place} {RANGE}", place)
        assert page.inner_text(f"{place} p.told") == ""


def test_how_far_out_a_value_is_is_not_seen(written: Written, show: Opener) -> None:
    baseline, best = {"x": 0.1, "flag": "a"}, {"x": 0.7, "flag": "b"}
    arms = enumerate([(baseline, 0.4), (best, 1.0)] * 3, 61)
    rounds = [Trial(n, {}, arm, Measured(({"m": value},)), value, 0.1, phase="confirm") for n, (arm, value) in arms]
    pages = []
    for far in (-1e3, -1e12):
        trials = [*with_far_ones(far), *rounds]
        pages.append(show(write(written(trials, str(far), knobs=XY, baseline=baseline, confirm={"mode": "auto"}))))
    one, two = pages
    assert [one.evaluate(picture_of(place)) == two.evaluate(picture_of(place)) for place in PLOTS] == [True] * 3


def test_far_rewards_do_not_flatten_a_comparison(runs: Written, show: Opener) -> None:
    """A run that did worse is not left out."""
    made = {"one": with_far_ones(-1e12), "two": with_far_ones(-1e12), "three": with_far_ones(-1e12)[:1]}
    page = show(write_comparison([runs(name, e={"trials": one, "knobs": XY}) for name, one in made.items()]))
    assert "farther out" in page.inner_text("#group-0 p.told")
    click_redraws(page, RANGE, "#group-0")
    assert page.inner_text("#group-0 p.told") == ""
    results = [runs(f"r{best}", e={"trials": of_rewards(best, 0.1), "knobs": XY}) for best in (0.1, 0.85, 0.9)]
    assert show(write_comparison(results)).locator(RANGE).count() == 0


# many of a thing ------------------------------------------------------------------------------------------


def test_sixty_knobs_are_folded(written: Written, show: Opener) -> None:
    rng = random.Random(2)
    actions = [{f"k{index:02d}": rng.random() for index in range(60)} for _ in range(200)]
    rewards = [3 * action["k50"] + action["k40"] + 0.1 * rng.random() for action in actions]
    knobs = {name: {"low": 0.0, "high": 1.0, "dtype": "float"} for name in actions[0]}
    page = show(write(written(measured(rewards, lambda n: actions[n - 1]), knobs=knobs)))
    assert page.locator("#best tbody tr:visible").count() == 20 + 2, "the reward and the metric are beside them"
    page.click("#best summary:has-text('40 more knobs')")
    assert page.locator("#best tbody tr:visible").count() == 60 + 2
    captions = page.locator("#knobs figcaption:visible")
    assert captions.all_text_contents()[:2] == ["k50", "k40"], "the most important ones are first"
    assert captions.count() == 12
    page.click("#knobs summary:has-text('show all 60 plots')")
    assert captions.count() == 60
    drawn = "() => [...document.querySelectorAll('#knobs canvas[role=img]')].every((one) => one.width !== 300)"
    page.wait_for_function(drawn, timeout=10_000)
    assert min(page.evaluate(PAINTED)) > 5


def test_many_trials_and_a_long_front_are_paged(written: Written, show: Opener) -> None:
    """20,000 trials, of which 2,000 are on the front and some are failures."""
    worst = Measured(({"m": 0.0, "latency": 3e3},))
    trials = two_metrics((float(n), float(n)) for n in range(1, 2001))
    for n in range(2001, 20_001):
        trials.append(Trial(n, {}, {"x": 0.0, "flag": "b"}, worst if n % 3 else Failed("f"), -3e3, 0.1))
    page = show(write(written(trials, knobs=XY, metrics=["m", "latency"], objectives=BOTH)))
    assert "1–50 of 20,000 trials" in page.inner_text("#trials .told")
    page.click("#trials th:nth-child(3) button")
    assert len(column(page, 1)) == 50
    page.fill("#trials input", "status=measured")
    assert "of 20,000" in page.inner_text("#trials .told")
    assert "2,000 settings" in page.inner_text("#front .about")
    first = "#front tbody tr:first-child td:last-child"
    assert page.locator("#front tbody tr").count() == 50
    assert (page.inner_text("#front .pager .told"), page.inner_text(first)) == ("1–50 of 2,000", "1")
    assert page.is_disabled("#front [aria-label='previous rows']")
    page.click("#front [aria-label='next rows']")
    assert (page.inner_text("#front .pager .told"), page.inner_text(first)) == ("51–100 of 2,000", "51")
    assert page.evaluate(ELEMENTS) < 3000
    assert min(page.evaluate(PAINTED)) > 5


# problems -------------------------------------------------------------------------------------------------

ABOVE = "document.querySelector('.box.bad').getBoundingClientRect().top < document.querySelector('.tiles').offsetTop"


def test_an_experiment_without_a_measurement_is_no_success(runs: Written, show: Opener) -> None:
    reasons = [Failed("<b>exited</b> with 3")] * 4 + [TimedOut("too slow")]
    trials = [Trial(n, {}, {"x": 1}, reason, -1e15, 0.1) for n, reason in enumerate(reasons, 1)]
    fine = measured([1.0])
    results = runs(
        "run",
        e={"trials": trials, "code": 1},
        coded={"trials": fine, "code": 7},
        fine={"trials": fine},
        empty={"trials": []},
        cut={"trials": fine, "ended": None},
        later={"trials": None},
    )
    page = show(
        write(results, failure="cut was ended by RuntimeError: boom\n\nTraceback ...\n  in here"), state="ready"
    )
    failure = page.locator(".box.bad").first
    assert "RuntimeError: boom" in failure.inner_text()
    assert "in here" not in failure.inner_text(), "the traceback is folded"
    failure.locator("summary").click()
    assert "in here" in failure.inner_text()
    assert f"tunegym resume {results.folder}" in page.inner_text(".box.note")
    box = page.inner_text("main .box.bad")
    assert "None of its 5 trials was measured" in box
    assert "Most often (4 of 5): failed: <b>exited</b> with 3" in box
    assert page.evaluate(ABOVE)
    assert "Nothing was measured" in page.inner_text("#rewards")
    assert "no best setting" in page.inner_text("#best")
    assert page.locator("#rewards canvas").count() == 0, "there is no axis of rewards without a reward"
    states = page.eval_on_selector_all(".state", "nodes => nodes.map((node) => [node.className, node.textContent])")
    bad, empty = ["state problem", "failed"], ["state problem", "finished, with a problem"]
    assert states[:4] == [bad, bad, ["state finished", "finished"], empty]
    assert "failed with exit code 1: the agent ended" in page.inner_text("#run")
    for tab, text in ((2, "It ended with code 7 (the agent ended)"), (4, "no best setting"), (6, "has not started")):
        page.click(f"[role=tab]:nth-child({tab})")
        assert text in page.inner_text("main")
    page.click("[role=tab]:nth-child(3)")
    assert page.locator("main .box.bad").count() == 0


# contexts and policies ------------------------------------------------------------------------------------


def learned(written: Written, contexts: int, count: int) -> Path:
    """A page of a policy that chooses the best setting, but in context 1 one that was never measured.

    The best single setting, ``x=3``, was never measured in context 0.
    """
    rng = random.Random(5)
    trials = []
    for number in range(1, count + 1):
        load = rng.randrange(contexts)
        x = rng.randint(1, 3 if load else 2)
        reward = 10.0**load * (1 if x == 1 + load % 3 else 0.5) * rng.gauss(1, 0.05)
        trials.append(Trial(number, {"load": load}, {"x": x}, Measured(({"m": reward},)), reward, 0.1))
    env_params = {"load": {"values": list(range(contexts))}}
    results = written(trials, knobs={"x": {"values": [1, 2, 3, 4]}}, env_params=env_params)
    choices = [({"x": 4 if load == 1 else 1 + load % 3}, {"load": load}) for load in range(contexts)]
    save_policy(results.folder / "e", count - 10, choices)
    return write(results)


def test_the_choices_of_a_policy(written: Written, show: Opener) -> None:
    page = show(learned(written, 3, 90))
    rows = [row.locator("td").all_text_contents() for row in page.locator("#policy tbody tr").all()]
    assert [row[:3] for row in rows] == [[f"load={n}", f"x={x}", "88 %"] for n, x in enumerate((1, 4, 3))]
    assert (rows[1][3], rows[1][4], rows[1][5]) == ("never", "", "x=2")
    assert "sample" in rows[1][6]
    assert rows[0][5:] == ["the same", ""]
    about = page.inner_text("#policy .about")
    assert "saved after 80 of 90 trials" in about
    assert "1 choice of 3 was never measured there" in about
    assert page.locator("#learning figcaption").all_inner_texts()[0].startswith("load=")
    assert page.locator("#answer .sentences li").count() == 3


def test_many_contexts_are_folded(written: Written, show: Opener, wait_until: Callable[..., None]) -> None:
    path = learned(written, 60, 20_000)
    assert path.stat().st_size < 4_000_000
    page = show(path, width=400)
    counts = {"#policy > .scroll tbody tr": 12, "#policy details tbody tr": 48}
    counts |= {"#learning > .figures figure": 12, "#learning details figure": 36}
    assert {place: page.locator(place).count() for place in counts} == counts
    assert "12 more contexts are not shown" in page.inner_text("#learning .empty")
    assert page.evaluate(WIDTH) == 400
    page.locator("#learning summary").click()
    drawn = "() => [...document.querySelectorAll('#learning details canvas')].every((canvas) => canvas.width > 300)"
    wait_until(lambda: page.evaluate(drawn), "the folded plots")


# comparisons and live experiments -------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (400, "light")])
def test_comparison(runs: Written, show: Opener, width: int, scheme: str) -> None:
    journal = {"trials": list(some_trials(40)), "knobs": KNOBS, "agent": HOSTILE[0]}
    results = [runs(name, e=journal, own={**journal, "metrics": ["m", name]}) for name in ("one", "two")]
    page = show(write_comparison(results), width, scheme)
    assert page.locator("#table tbody tr").count() == 4
    assert "own: the metrics differ" in page.inner_text(".box.note")
    assert page.locator("section[id^=group]").count() == 2
    assert min(page.evaluate(PAINTED)) > 5
    page.click(".grouping button:nth-child(2)")
    assert page.locator("section[id^=group]").count() == 1
    assert page.evaluate(WIDTH) == width


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


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (400, "light")])
def test_a_live_experiment_is_drawn(live: Path, tmp_path: Path, show: Opener, width: int, scheme: str) -> None:
    page = show(live, width, scheme)
    assert sections(page) == [
        *("returns", "contexts", "lengths", "rewards", "training", "policy", "outcomes", "time", "run"),
    ]
    assert min(page.evaluate(PAINTED)) > 2
    assert "PPO.load" in page.inner_text("#policy")
    assert HOSTILE[0] in page.inner_text("#outcomes")
    assert page.evaluate(f"{WIDTH} <= document.documentElement.clientWidth")
    page.hover("#returns canvas[role=img]")
    write_live(tmp_path / "other", [{"length": 7}, {"length": 9}])
    page = show(write_comparison([load(tmp_path / "run"), load(tmp_path / "other")]), width, scheme)
    assert sections(page) == ["live"]
    assert "mean return" in page.inner_text("#live")
    assert min(page.evaluate(PAINTED)) > 2
