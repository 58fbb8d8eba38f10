// Server-sent events from a fetch response.

/** The `data` of each event, in order. Lines may arrive in any pieces; CRLF and LF both end them. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      const lines = held.split("\n");
      held = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line.startsWith("data:")) {
          data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
        } else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    // Whoever stops listening ends the request with it.
    reader.cancel().catch(() => {});
  }
}
