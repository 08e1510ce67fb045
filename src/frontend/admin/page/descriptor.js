// The text of a descriptor: key=value,key=value. A key or value with blanks, commas, quotes and the like is quoted as in Go.

const escapes = { a: "\x07", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t", v: "\v", "\\": "\\", '"': '"' };
const escapeLengths = { x: 2, u: 4, U: 8 };

// fromLog returns a text without the quotes and escapes of a log: it is one quoted word, or its first quote has a backslash.
function fromLog(text) {
  for (;;) {
    const first = text.indexOf('"');
    if (first < 0 || first > 0 && text[first - 1] !== "\\") return text;
    try {
      const reader = new Reader(first === 0 ? text : `"${text}"`);
      const plain = reader.readText("");
      if (!reader.isAtEnd()) return text;
      text = plain;
    } catch {
      return text; // It is no text of a log.
    }
  }
}

// parseDescriptor returns {entries, isCut}. isCut reports that the text, as the service shows it, is not all of the descriptor.
export function parseDescriptor(text) {
  const reader = new Reader(fromLog(text.trim()));
  const entries = [];
  let isCut = false;
  do {
    const key = reader.readText("=,");
    if (key.startsWith("… (")) { // The service has left out further entries.
      isCut = true;
      continue;
    }
    const value = reader.skip("=") ? reader.readText(",") : "";
    if (key === "") throw new Error(`${text}: write key=value, separated by commas; a key is missing`);
    entries.push({ key, value });
    isCut ||= key.endsWith("…") || value.endsWith("…");
  } while (reader.skip(","));
  if (!reader.isAtEnd()) throw new Error(`${text}: write a comma after the closing quote`);
  return { entries, isCut };
}

class Reader {
  #text;
  #at = 0;

  constructor(text) {
    this.#text = text.trim();
  }

  isAtEnd() {
    return this.#at >= this.#text.length;
  }

  // skip skips a character if it is the next one, and reports whether it did.
  skip(character) {
    if (this.#text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  // readText reads a quoted text, or one up to a character of ends.
  readText(ends) {
    if (this.#text[this.#at] === '"') return this.#readQuoted();
    const begin = this.#at;
    while (!this.isAtEnd() && !ends.includes(this.#text[this.#at])) this.#at++;
    return this.#text.slice(begin, this.#at).trim();
  }

  #readQuoted() {
    let value = "";
    for (this.#at++; !this.isAtEnd(); this.#at++) {
      const character = this.#text[this.#at];
      if (character === '"') {
        this.#at++;
        return value;
      }
      value += character === "\\" ? this.#readEscape() : character;
    }
    throw new Error(`${this.#text}: a closing quote is missing`);
  }

  // readEscape reads the characters behind a backslash, but for the last one.
  #readEscape() {
    const kind = this.#text[++this.#at];
    if (kind in escapes) return escapes[kind];
    const length = escapeLengths[kind];
    const digits = this.#text.slice(this.#at + 1, this.#at + 1 + length);
    const code = parseInt(digits, 16);
    if (!length || !(code <= 0x10ffff)) throw new Error(`${this.#text}: \\${kind ?? ""} is not an escape of Go`);
    if (kind === "x" && code > 0x7f) throw new Error(`${this.#text}: \\x${digits} is a byte that is not UTF-8 text; only ratelimit explain can send it`);
    this.#at += length;
    return String.fromCodePoint(code);
  }
}
