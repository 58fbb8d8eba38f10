// The server, through its public API. All addresses are relative, so that a proxy may put the page under any path.

import { events } from "./sse.js";

const BASE = new URL("..", import.meta.url);

/** Something the server or the network refused, in the server's own words. */
export class Trouble extends Error {
  constructor(message, { code = null, explanation = null, status = 0, retryAfter = null } = {}) {
    super(message);
    this.code = code;
    this.status = status;
    this.retryAfter = retryAfter;
    // Only ever an address of this server's catalog.
    this.explanation = /^\/api\/errors\/[A-Za-z0-9-]+$/.test(explanation ?? "") ? explanation : null;
  }
}

function address(path) {
  return new URL(path.replace(/^\//, ""), BASE);
}

function headers(key) {
  const common = { "Content-Type": "application/json" };
  return key ? { ...common, Authorization: `Bearer ${key}` } : common;
}

function troubleOf(body, status = 0, retryAfter = null) {
  const error = body?.error;
  if (typeof error?.message === "string") {
    const { message, code, explanation } = error;
    return new Trouble(message, { code, explanation, status, retryAfter });
  }
  return new Trouble(`The server answered with status ${status} and no explanation.`, { status, retryAfter });
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(address(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server cannot be reached. It may have been stopped, or the network is down.");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw troubleOf(body, response.status, response.headers.get("Retry-After"));
  }
  return response;
}

/** Names of the models the server offers. */
export async function models(key) {
  const response = await ask("v1/models", { headers: headers(key) });
  return (await response.json()).data.map((model) => model.id);
}

/** What an error means, as the catalog has it. */
export async function explanation(path) {
  return (await ask(path, {})).json();
}

/** Where that is, for a link. */
export function link(path) {
  return address(path).href;
}

/** The chunks of one streamed answer. Ends normally only where the server said that it was done. */
export async function* answer(body, key, signal) {
  const options = { method: "POST", headers: headers(key), body: JSON.stringify(body), signal };
  const response = await ask("v1/chat/completions", options);
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw troubleOf(chunk);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
    throw new Trouble("The connection broke before the answer was complete.");
  }
  throw new Trouble("The connection ended before the answer was complete.");
}
