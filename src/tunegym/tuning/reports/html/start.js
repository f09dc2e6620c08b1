const facts = JSON.parse(document.getElementById("data").textContent);
document.getElementById("page").replaceChildren(facts.kind === "run" ? runPage(facts) : comparePage(facts), tooltip);
document.documentElement.dataset.ready = "yes";
