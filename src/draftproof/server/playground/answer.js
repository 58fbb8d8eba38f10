// One answer as it comes in, and what can be said about it.

import { Marks } from "./marks.js";

/** Collects the chunks of one streamed answer. Times are milliseconds since it was asked for. */
export class Answer {
  text = "";
  thoughts = "";
  tools = [];
  tokens = []; // token ids, where the server gives them
  pieces = []; // their texts, where it does not
  moments = []; // [{at, runs, count}], for a replay
  finish = null;
  usage = null;
  speculative = null;
  #marks = new Marks();
  #start = performance.now();

  /** Takes a chunk; returns what is new: `{runs, thoughts}`. */
  take(chunk) {
    const at = performance.now() - this.#start;
    if (chunk.usage) this.usage = chunk.usage;
    const { pieces, ...counts } = chunk.speculative ?? {};
    if (typeof counts.steps === "number") this.speculative = counts;
    const choice = chunk.choices?.[0];
    if (!choice) return { runs: [], thoughts: "" };
    if (choice.finish_reason) this.finish = choice.finish_reason;
    const added = pieces ?? choice.speculative?.pieces ?? [];
    const before = this.count;
    this.#marks.add(added);
    this.pieces.push(...added.map((piece) => piece.text));
    this.tokens.push(...(choice.token_ids ?? []));
    const delta = choice.delta ?? {};
    const thoughts = delta.reasoning_content ?? "";
    this.thoughts += thoughts;
    if (thoughts) this.#marks.cover(thoughts);
    for (const call of delta.tool_calls ?? []) this.#call(call);
    const runs = this.#marks.cover(delta.content ?? "");
    this.text += delta.content ?? "";
    if (runs.length || this.count > before) this.moments.push({ at, runs, count: this.count });
    return { runs, thoughts };
  }

  #call({ index, function: called }) {
    const call = (this.tools[index] ??= { name: "", arguments: "" });
    call.name += called?.name ?? "";
    call.arguments += called?.arguments ?? "";
  }

  /** Tokens so far. */
  get count() {
    return this.tokens.length || this.usage?.completion_tokens || this.pieces.length;
  }

  /** Tokens a second after the first ones, so that the prompt does not count; null before there is anything to measure. */
  get speed() {
    return speed(this.moments, this.moments.length);
  }

  get firstAt() {
    return this.moments[0]?.at ?? null;
  }
}

/** The same up to one of the moments. */
export function speed(moments, upTo) {
  if (upTo < 2) return null;
  const first = moments[0];
  const last = moments[upTo - 1];
  return last.at > first.at ? (1000 * (last.count - first.count)) / (last.at - first.at) : null;
}

/** A number with one digit after the point, or a dash. */
export function short(value, digits = 1) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : value.toFixed(digits);
}

/** One line about an answer, with its seed where it is to be told, without the speed where that stands elsewhere. */
export function facts(answer, seed, withSpeed = true) {
  const parts = [`${answer.count} token${answer.count === 1 ? "" : "s"}`];
  if (answer.finish === "length") parts[0] += " (cut at the limit)";
  if (withSpeed && answer.speed !== null) parts.push(`${short(answer.speed)} tokens/s`);
  const counts = answer.speculative;
  if (counts?.drafted) {
    parts.push(`acceptance length ${short(counts.acceptance_length, 2)}`);
    parts.push(`${counts.accepted} of ${counts.drafted} drafts kept in ${counts.steps} steps`);
  } else if (counts) {
    parts.push(`nothing drafted, ${counts.steps} steps`);
  }
  if (answer.firstAt !== null) parts.push(`first after ${Math.round(answer.firstAt)} ms`);
  if (seed !== undefined) parts.push(`seed ${seed}`);
  return parts.join(" · ");
}

/** What of an answer goes into a file. */
export function record(answer) {
  const { text, thoughts, tools, tokens, finish, usage, speculative } = answer;
  return {
    text,
    reasoning: thoughts || undefined,
    tool_calls: tools.length ? tools : undefined,
    token_ids: tokens.length ? tokens : undefined,
    finish_reason: finish,
    usage,
    speculative,
    tokens_per_second: answer.speed,
  };
}
