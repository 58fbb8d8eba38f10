// The settings form: read for each request, kept in the tab between visits.

const PLACE = "draftproof.settings";
const KEPT = ["draft", "draft_length", "show", "temperature", "top_p", "max_tokens", "seed", "system"];

export class Settings {
  #form;

  constructor(form) {
    this.#form = form;
    this.#restore();
    form.addEventListener("input", () => this.#keep());
    form.addEventListener("submit", (event) => event.preventDefault());
    form.elements.draft_length.addEventListener("focus", () => {
      form.elements.draft.value = "fixed";
      this.#keep();
    });
  }

  /** Whether every field holds something the server can be asked for; says so at the field where not. */
  check() {
    return this.#form.reportValidity();
  }

  get valid() {
    return this.#form.checkValidity();
  }

  get key() {
    return this.#form.elements.key.value.trim();
  }

  get system() {
    return this.#form.elements.system.value.trim();
  }

  get show() {
    return this.#form.elements.show.checked;
  }

  /** `"auto"`, 0 or a number of tokens. */
  get draftLength() {
    const { draft, draft_length: length } = this.#form.elements;
    if (draft.value === "off") return 0;
    return draft.value === "fixed" ? Number(length.value) || 1 : "auto";
  }

  /** The seed asked for, or a new one: every answer can be asked for again. */
  seed() {
    return this.#number("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
  }

  /** The body of a request. */
  request(messages, seed, draftLength) {
    const system = this.system ? [{ role: "system", content: this.system }] : [];
    const model = this.#form.elements.model.value; // empty while the server's list could not be read
    const body = {
      ...(model && { model }),
      messages: [...system, ...messages],
      stream: true,
      stream_options: { include_usage: true },
      seed,
      speculative: { draft_length: draftLength, include_pieces: true },
      return_token_ids: true,
    };
    const optional = { temperature: "temperature", top_p: "top_p", max_tokens: "max_completion_tokens" };
    for (const [field, name] of Object.entries(optional)) {
      const value = this.#number(field);
      if (value !== null) body[name] = value;
    }
    return body;
  }

  models(names) {
    const select = this.#form.elements.model;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  }

  onKey(listener) {
    this.#form.elements.key.addEventListener("change", listener);
  }

  onShow(listener) {
    this.#form.elements.show.addEventListener("change", listener);
  }

  focusKey() {
    this.#form.elements.key.focus();
  }

  #number(name) {
    const text = this.#form.elements[name].value.trim();
    return text === "" ? null : Number(text);
  }

  #keep() {
    const kept = {};
    for (const name of KEPT) {
      const field = this.#form.elements[name];
      kept[name] = field.type === "checkbox" ? field.checked : field.value;
    }
    keep(PLACE, kept);
  }

  #restore() {
    const kept = keptIn(PLACE) ?? {};
    for (const name of KEPT) {
      const field = this.#form.elements[name];
      if (!(name in kept)) continue;
      if (field.type === "checkbox") field.checked = Boolean(kept[name]);
      else field.value = kept[name];
    }
  }
}

/** Keeps a value in this tab; a browser that refuses, or has no room, only makes the page forget. */
export function keep(place, value) {
  try {
    sessionStorage.setItem(place, JSON.stringify(value));
  } catch {
    /* nothing to be done */
  }
}

export function keptIn(place) {
  try {
    return JSON.parse(sessionStorage.getItem(place));
  } catch {
    return null;
  }
}
