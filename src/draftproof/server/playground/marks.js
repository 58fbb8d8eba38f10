// Which part of the text came from the drafter.

/**
 * Lays the server's pieces over the shown text. Pieces cover everything the model wrote; what is shown may leave parts out
 * (the marks around thoughts and tool calls) or come later than its pieces, so each is looked up where it continues.
 */
export class Marks {
  #pieces = [];

  add(pieces) {
    for (const { text, drafted } of pieces) if (text) this.#pieces.push({ text, drafted });
  }

  /** The runs `[{text, drafted}]` of some shown text; not drafted where no piece says so. */
  cover(text) {
    if (!text) return [];
    const start = this.#find(text);
    if (start < 0) return [{ text, drafted: false }];
    this.#take(start);
    return this.#take(text.length);
  }

  /** Where the text begins: at a piece's beginning if it can, for what is left out is whole pieces as a rule. */
  #find(text) {
    const written = this.#pieces.map((piece) => piece.text).join("");
    let at = 0;
    for (const piece of this.#pieces) {
      if (written.startsWith(text, at)) return at;
      at += piece.text.length;
    }
    return written.indexOf(text);
  }

  #take(length) {
    const taken = [];
    while (length > 0) {
      const piece = this.#pieces[0];
      const text = piece.text.slice(0, length);
      taken.push({ text, drafted: piece.drafted });
      length -= text.length;
      if (text.length === piece.text.length) this.#pieces.shift();
      else piece.text = piece.text.slice(text.length);
    }
    return taken;
  }
}

/** Adds runs to an element: one span a stretch of drafted text, bare text otherwise. */
export function write(element, runs) {
  for (const { text, drafted } of runs) {
    const last = element.lastChild;
    const alike = last && (last.nodeType === Node.ELEMENT_NODE) === Boolean(drafted);
    if (alike) {
      (drafted ? last.firstChild : last).appendData(text);
    } else if (drafted) {
      const span = document.createElement("span");
      span.className = "drafted";
      span.textContent = text;
      element.append(span);
    } else {
      element.append(text);
    }
  }
}
