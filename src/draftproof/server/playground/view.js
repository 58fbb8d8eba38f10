// Small things of the page that chat and race share.

import { Trouble, explanation, link } from "./api.js";

export const $ = (id) => document.getElementById(id);

/** Says something to a screen reader. */
export function say(words) {
  $("status").textContent = words;
}

/** Scrolls to the end while something is written, unless the reader has scrolled away. */
export function follow(view, write) {
  const near = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
  write();
  if (near) view.scrollTop = view.scrollHeight;
}

/** An element that tells of an error, with the catalog's explanation on demand. */
export function trouble(error) {
  const element = $("trouble").content.firstElementChild.cloneNode(true);
  const known = error instanceof Trouble;
  element.querySelector(".code").textContent = known ? (error.code ?? "") : "";
  element.querySelector(".words").textContent = wordsOf(error);
  if (known && error.explanation) {
    const more = element.querySelector(".more");
    more.hidden = false;
    more.querySelector(".source").href = link(error.explanation);
    more.addEventListener("toggle", () => fill(more.querySelector(".explanation"), error.explanation), { once: true });
  }
  if (!known) console.error(error);
  return element;
}

function wordsOf(error) {
  if (!(error instanceof Trouble)) return "Something in this page went wrong; the browser’s console has the details.";
  const sentence = error.message.charAt(0).toUpperCase() + error.message.slice(1) + (/[.!?]$/.test(error.message) ? "" : ".");
  if (error.status === 401) return `${sentence} Enter a key under Settings, Server.`;
  if (error.retryAfter) return `${sentence} Try again in ${error.retryAfter} s.`;
  return sentence;
}

async function fill(element, path) {
  element.textContent = "Loading…";
  try {
    const entry = await explanation(path);
    element.replaceChildren(
      node("p", entry.meaning),
      node("h4", "What triggers it"),
      node("ul", ...(entry.triggers ?? []).map((trigger) => node("li", trigger))),
      node("h4", "How to fix it"),
      node("p", entry.fix),
      node("h4", "Before"),
      node("pre", entry.before),
      node("h4", "After"),
      node("pre", entry.after),
    );
  } catch {
    element.textContent = "The explanation could not be loaded.";
  }
}

export function node(name, ...children) {
  const element = document.createElement(name);
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** Hands the reader a file. */
export function download(name, value) {
  const file = new Blob([JSON.stringify(value, null, 2) + "\n"], { type: "application/json" });
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(file);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
}
