// Puts the page together: tabs, composer, settings, keys.

import { models } from "./api.js";
import { Chat } from "./chat.js";
import { Race } from "./race.js";
import { Settings, keep, keptIn } from "./settings.js";
import { $, node, say, trouble } from "./view.js";

const STARTERS = [
  "Explain how a rainbow forms, for a child.",
  "Write a Python function that reverses a linked list.",
  "List ten facts about the ocean as a numbered list.",
];
const THEMES = ["automatic", "light", "dark"];
const WIDE = matchMedia("(min-width: 861px)");

const settings = new Settings($("settings-form"));
const chat = new Chat(settings);
const race = new Race(settings);
let running = null; // the AbortController of what runs

// Tabs

const tabs = [$("tab-chat"), $("tab-race")];

function choose(tab) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", String(chosen));
    one.tabIndex = chosen ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = !chosen;
  }
  const racing = tab.id === "tab-race";
  $("send").textContent = racing ? "Race" : "Send";
  $("prompt-label").textContent = racing ? "The prompt for both runs" : "Your message";
  $("prompt").placeholder = racing ? "Write a prompt for both runs" : "Write a message";
}

for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : null;
    if (step === undefined && to === null) return;
    event.preventDefault();
    const next = tabs[to ?? (tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    choose(next);
    next.focus();
  });
}

// The composer

function busy(controller) {
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
  for (const id of ["again", "clear", "replay"]) $(id).disabled = controller !== null;
  for (const tab of tabs) tab.disabled = controller !== null && tab.getAttribute("aria-selected") === "false";
}

async function run(text) {
  if (running) return;
  if (!settings.valid) {
    openSettings(true);
    settings.check();
    return;
  }
  const racing = !$("view-race").hidden;
  const hadFocus = [$("send"), $("again")].includes(document.activeElement);
  busy(new AbortController());
  if (hadFocus) $("stop").focus();
  try {
    await (racing ? race : chat).run(text, running.signal);
  } catch (error) {
    (racing ? $("race-trouble") : $("log")).append(trouble(error));
  } finally {
    const stopHadFocus = document.activeElement === $("stop");
    busy(null);
    if (stopHadFocus) $("prompt").focus();
  }
}

function send() {
  const text = $("prompt").value;
  if (running || !text.trim()) {
    $("prompt").focus();
    return;
  }
  if ($("view-race").hidden && settings.valid) $("prompt").value = ""; // a race may be run again as it is
  void run(text);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("again").addEventListener("click", () => void run(null));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (!WIDE.matches && !$("settings").hidden) openSettings(false);
});

$("starters").append(
  ...STARTERS.map((text) => {
    const button = node("button", text);
    button.type = "button";
    button.addEventListener("click", () => {
      $("prompt").value = text;
      $("prompt").focus();
    });
    return node("li", button);
  }),
);

// Settings and colours

function openSettings(open) {
  $("settings").hidden = !open;
  $("toggle-settings").setAttribute("aria-expanded", String(open));
  const covered = open && !WIDE.matches;
  document.querySelector("main").inert = covered;
  if (covered) $("close-settings").focus();
}

$("toggle-settings").addEventListener("click", () => openSettings($("settings").hidden));
$("close-settings").addEventListener("click", () => {
  openSettings(false);
  $("toggle-settings").focus();
});
WIDE.addEventListener("change", () => openSettings(WIDE.matches));
openSettings(WIDE.matches);

function showDrafts() {
  document.body.classList.toggle("plain", !settings.show);
  $("legend").hidden = !settings.show;
}
settings.onShow(showDrafts);
showDrafts();

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").setAttribute("aria-label", `Colours: ${name}`);
  $("theme").title = `Colours: ${name}`;
  keep("draftproof.theme", name);
}
$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  theme(next);
  say(`Colours: ${next}`);
});
theme(keptIn("draftproof.theme") ?? "automatic");

// The server

let offline = null; // what is shown while there is no list of models

async function connect() {
  try {
    const names = await models(settings.key);
    offline?.remove();
    settings.models(names);
    $("model-name").textContent = names[0] ?? "";
  } catch (error) {
    $("model-name").textContent = "";
    offline?.remove();
    offline = trouble(error);
    $("log").append(offline);
    if (error.status === 401) {
      openSettings(true);
      settings.focusKey();
    }
  }
}
settings.onKey(connect);
await connect();
document.documentElement.dataset.ready = "yes";
