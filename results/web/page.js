"use strict";
/* What every page can do: read its data, copy text, save a file. */
const page = {
  /** The value of a JSON block. */
  json(id) { return JSON.parse(document.getElementById(id).textContent); },

  /** The bytes of a packed block, as an ArrayBuffer. */
  async unpacked(id) {
    const coded = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(coded, letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  },

  /** Put text on the clipboard; also where the browser gives no clipboard to a page of a file. */
  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"), focused = document.activeElement;
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      focused?.focus();
    }
  },

  /** Offer a Blob as a download. */
  save(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  },
};
