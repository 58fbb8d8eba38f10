// The same request with drafting and without: two runs, one after the other, and their tokens compared.

import { answer as ask } from "./api.js";
import { Answer, facts, record, short, speed } from "./answer.js";
import { write } from "./marks.js";
import { $, download, follow, node, say, trouble } from "./view.js";

const WARM_UP = 4; // tokens

/** One of the two columns. */
class Lane {
  constructor(id) {
    this.element = $(id);
    this.answer = null;
  }

  part(name) {
    return this.element.querySelector(`[data-${name}]`);
  }

  clear(words) {
    this.part("text").replaceChildren();
    this.part("speed").textContent = "–";
    this.part("bar").style.width = "0";
    this.part("facts").textContent = words;
  }

  /** Shows the answer up to one of its moments. */
  show(runs, pace, share) {
    write(this.part("text"), runs);
    this.part("speed").textContent = short(pace);
    this.part("bar").style.width = `${Math.min(100, 100 * share)}%`;
  }
}

export class Race {
  #settings;
  #view = $("view-race");
  #on = new Lane("lane-on");
  #off = new Lane("lane-off");
  #last = null;
  #replaying = 0;

  constructor(settings) {
    this.#settings = settings;
    $("replay").addEventListener("click", () => this.#replay());
    $("export-race").addEventListener("click", () => download("draftproof-race.json", this.#last));
  }

  async run(text, signal) {
    this.#replaying += 1;
    const seed = this.#settings.seed();
    const drafting = this.#settings.draftLength || "auto";
    this.#reset();
    try {
      this.#on.clear("Warming up…");
      say("Race: warming up.");
      const request = (draftLength) => this.#settings.request([{ role: "user", content: text }], seed, draftLength);
      // What comes only once, such as reading the prompt, is not to be compared.
      for (const length of [drafting, 0]) await this.#warmUp(request(length), signal);
      await this.#drive(this.#on, request(drafting), seed, signal);
      await this.#drive(this.#off, request(0), seed, signal);
      this.#judge(text, seed, drafting);
    } catch (error) {
      for (const lane of [this.#on, this.#off]) {
        if (!lane.answer?.finish) lane.part("facts").textContent = error.name === "AbortError" ? "Stopped" : "Not finished";
      }
      if (error.name === "AbortError") say("The race is stopped.");
      else $("race-trouble").append(trouble(error));
    }
  }

  #reset() {
    this.#last = null;
    $("race-trouble").replaceChildren();
    $("verdict").hidden = $("race-actions").hidden = true;
    for (const lane of [this.#on, this.#off]) {
      lane.answer = null;
      lane.clear("Waiting");
    }
  }

  async #warmUp(body, signal) {
    const most = Math.min(WARM_UP, body.max_completion_tokens ?? WARM_UP);
    for await (const _ of ask({ ...body, max_completion_tokens: most }, this.#settings.key, signal));
  }

  async #drive(lane, body, seed, signal) {
    const most = body.max_completion_tokens ?? 256;
    const answer = (lane.answer = new Answer());
    lane.clear("Running…");
    say(lane === this.#on ? "Running with drafting." : "Running without drafting.");
    for await (const chunk of ask(body, this.#settings.key, signal)) {
      const { runs, thoughts } = answer.take(chunk);
      const all = thoughts ? [{ text: thoughts, drafted: false }, ...runs] : runs;
      follow(this.#view, () => lane.show(all, answer.speed, answer.count / most));
    }
    lane.part("bar").style.width = "100%";
    lane.part("facts").textContent = facts(answer, undefined, false);
  }

  #judge(text, seed, drafting) {
    const [on, off] = [this.#on.answer, this.#off.answer];
    const where = firstDifference(on, off);
    const ratio = on.speed && off.speed ? on.speed / off.speed : null;
    const pace = paceOf(on, ratio);
    const verdict = $("verdict");
    verdict.classList.toggle("different", where !== null);
    const found =
      where === null
        ? [node("strong", "Identical."), node("span", `All ${on.count} tokens are the same.`), node("span", pace)]
        : [node("strong", "Different."), node("span", `The first difference is at token ${where + 1}.`), node("span", pace)];
    verdict.replaceChildren(...found.flatMap((part) => [part, " "]));
    if (where !== null) this.#point();
    verdict.hidden = $("race-actions").hidden = false;
    this.#view.scrollTop = 0;
    say(verdict.textContent);
    this.#last = {
      saved: new Date().toISOString(),
      prompt: text,
      system: this.#settings.system || undefined,
      seed,
      draft_length: drafting,
      identical: where === null,
      first_difference: where,
      speed_ratio: ratio,
      drafting_on: record(on),
      drafting_off: record(off),
    };
  }

  /** Marks the first letter at which the shown texts part. */
  #point() {
    const at = firstUnequal([...this.#on.answer.text], [...this.#off.answer.text]);
    if (at === null) return;
    for (const lane of [this.#on, this.#off]) {
      const letters = [...lane.answer.text];
      const mark = node("mark", letters[at] ?? "⏹");
      lane.part("text").replaceChildren(letters.slice(0, at).join(""), mark, letters.slice(at + 1).join(""));
    }
  }

  /** Plays both runs again on one clock, as they came in. */
  #replay() {
    const mine = (this.#replaying += 1);
    const lanes = [this.#on, this.#off].map((lane) => ({ lane, moments: lane.answer.moments, next: 0 }));
    for (const { lane } of lanes) {
      lane.part("text").replaceChildren();
      lane.part("bar").style.width = "0";
    }
    say("Replaying both runs side by side.");
    const start = performance.now();
    const frame = () => {
      if (mine !== this.#replaying) return;
      const now = performance.now() - start;
      for (const one of lanes) {
        const { lane, moments } = one;
        const total = moments.at(-1)?.count || 1;
        while (one.next < moments.length && moments[one.next].at - moments[0].at <= now) {
          const { runs, count } = moments[one.next++];
          lane.show(runs, speed(moments, one.next), count / total);
        }
      }
      if (lanes.some(({ next, moments }) => next < moments.length)) requestAnimationFrame(frame);
      else if (this.#last?.identical === false) this.#point();
    };
    frame();
  }
}

function paceOf(on, ratio) {
  if (on.speculative?.drafted === 0) return "Nothing was drafted: there is no drafter, or drafting does not pay here.";
  return ratio === null ? "" : `Drafting was ${short(ratio, 2)}× as fast.`;
}

/** The index of the first token that differs or is missing in one of two answers; null where there is none. */
function firstDifference(on, off) {
  if (on.tokens.length && off.tokens.length) return firstUnequal(on.tokens, off.tokens);
  if (on.pieces.length && off.pieces.length) return firstUnequal(on.pieces, off.pieces);
  return firstUnequal([...on.text], [...off.text]);
}

function firstUnequal(one, other) {
  const length = Math.max(one.length, other.length);
  for (let index = 0; index < length; index += 1) if (one[index] !== other[index]) return index;
  return null;
}
