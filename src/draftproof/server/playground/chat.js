// The conversation.

import { answer as ask } from "./api.js";
import { Answer, facts, record } from "./answer.js";
import { write } from "./marks.js";
import { keep, keptIn } from "./settings.js";
import { $, download, follow, say, trouble } from "./view.js";

const PLACE = "draftproof.conversation";
const NAMES = { user: "You", assistant: "Model" };

export class Chat {
  #settings;
  #turns = []; // [{role, content, runs, facts, details}]
  #view = $("view-chat");

  constructor(settings) {
    this.#settings = settings;
    for (const turn of keptIn(PLACE) ?? []) this.#restore(turn);
    this.#tidy();
    $("clear").addEventListener("click", () => this.#clear());
    $("export").addEventListener("click", () => this.#export());
  }

  get canRepeat() {
    return this.#turns.some((turn) => turn.role === "user");
  }

  /** Asks `text`, or, without one, the last question again. */
  async run(text, signal) {
    if (text === null) this.#forgetLast("assistant");
    else this.#forgetLast("user"); // a question that got no answer is not asked along with the next one
    if (text !== null) this.#restore({ role: "user", content: text });
    $("log").querySelectorAll(".trouble").forEach((element) => element.remove());
    this.#tidy();
    this.#view.scrollTop = this.#view.scrollHeight;
    const seed = this.#settings.seed();
    const messages = this.#turns.map(({ role, content }) => ({ role, content }));
    const body = this.#settings.request(messages, seed, this.#settings.draftLength);
    const element = this.#message("assistant");
    element.classList.add("busy");
    const answer = new Answer();
    say("The model is answering.");
    let failure = null;
    try {
      for await (const chunk of ask(body, this.#settings.key, signal)) this.#show(element, answer, seed, chunk);
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else failure = error;
    }
    element.classList.remove("busy");
    this.#finish(element, answer, seed, failure, body);
  }

  #show(element, answer, seed, chunk) {
    const { runs, thoughts } = answer.take(chunk);
    follow(this.#view, () => {
      write(element.querySelector(":scope > .text"), runs);
      if (thoughts) {
        element.querySelector(".thoughts").hidden = false;
        element.querySelector(".thoughts .text").append(thoughts);
      }
      element.querySelector(".facts").textContent = facts(answer, seed);
    });
  }

  #finish(element, answer, seed, failure, body) {
    const empty = !answer.text && !answer.thoughts && !answer.tools.length;
    if (empty && failure) {
      element.remove();
    } else {
      const line = facts(answer, seed) + (answer.finish === "stopped" ? " · stopped" : "");
      if (answer.tools.length) write(element.querySelector(":scope > .text"), [{ text: calls(answer) }]);
      if (empty && !answer.count) element.querySelector(":scope > .text").textContent = "(no text)";
      element.querySelector(".facts").textContent = line;
      this.#turns.push({
        role: "assistant",
        content: answer.text,
        runs: answer.moments.flatMap((moment) => moment.runs),
        thoughts: answer.thoughts,
        facts: line,
        details: { ...record(answer), seed, draft_length: body.speculative.draft_length },
      });
    }
    if (failure) follow(this.#view, () => $("log").append(trouble(failure)));
    say(failure ? "The answer failed." : `Answer: ${answer.text} ${answer.finish === "stopped" ? "Stopped." : ""}`);
    this.#tidy();
  }

  #forgetLast(role) {
    while (this.#turns.length && this.#turns.at(-1).role === role) {
      this.#turns.pop();
      $("log").querySelector(".message:last-of-type")?.remove();
    }
  }

  #restore(turn) {
    this.#turns.push(turn);
    const element = this.#message(turn.role);
    write(element.querySelector(":scope > .text"), turn.runs ?? [{ text: turn.content, drafted: false }]);
    element.querySelector(".facts").textContent = turn.facts ?? "";
    if (turn.thoughts) {
      element.querySelector(".thoughts").hidden = false;
      element.querySelector(".thoughts .text").textContent = turn.thoughts;
    }
  }

  #message(role) {
    const element = $("message").content.firstElementChild.cloneNode(true);
    element.classList.add(role);
    element.querySelector(".who").textContent = NAMES[role];
    const copy = element.querySelector(".copy");
    copy.setAttribute("aria-label", role === "user" ? "Copy your message" : "Copy the answer");
    copy.addEventListener("click", () => copyText(copy, element.querySelector(":scope > .text").textContent));
    $("log").append(element);
    return element;
  }

  #tidy() {
    $("chat-empty").hidden = $("log").childElementCount > 0;
    $("log-actions").hidden = $("log").childElementCount === 0;
    $("again").hidden = !this.canRepeat;
    keep(PLACE, this.#turns);
  }

  #clear() {
    this.#turns = [];
    $("log").replaceChildren();
    this.#tidy();
    say("The conversation is cleared.");
    $("prompt").focus();
  }

  #export() {
    const system = this.#settings.system;
    const turns = this.#turns.map(({ role, content, details }) => ({ role, content, ...(details && { details }) }));
    download("draftproof-chat.json", {
      saved: new Date().toISOString(),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
    });
  }
}

function calls(answer) {
  return answer.tools.map((call) => `${answer.text ? "\n" : ""}${call.name}(${call.arguments})`).join("\n");
}

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying is not allowed here";
  }
  say(button.textContent);
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
