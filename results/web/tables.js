"use strict";
/* The page of a run: tables that sort, filter and copy, and texts that copy. */
const collator = new Intl.Collator("en", {numeric: true});

/** A table of the page, whose rows have the strings of its file. */
class Table {
  constructor(element) {
    this.element = element;
    this.body = element.querySelector("tbody");
    this.rows = [...this.body.rows];
    this.raw = new Map(this.rows.map(row => [row, JSON.parse(row.dataset.raw)]));
    this.heads = [...element.querySelectorAll("thead th")];
    this.search = element.querySelector("input");
    this.heads.forEach((head, column) => head.firstChild.addEventListener("click", () => this.sort(head, column)));
    this.search?.addEventListener("input", () => this.filter());
    for (const button of element.querySelectorAll("button[data-do]"))
      button.addEventListener("click", () => this[button.dataset.do]());
  }

  /** Sort upwards, then downwards, then as it was; numbers by value, and what is missing last. */
  sort(head, column) {
    const order = {none: "ascending", ascending: "descending", descending: "none"}[head.ariaSort];
    for (const one of this.heads) one.ariaSort = one === head ? order : "none";
    const numeric = head.classList.contains("n"), sign = order === "ascending" ? 1 : -1;
    const key = row => numeric ? this.raw.get(row)[head.dataset.place] : row.cells[column].textContent.trim();
    const missing = text => text === "" || (numeric && Number.isNaN(Number(text)));
    const compare = (one, two) => missing(one) || missing(two) ? missing(one) - missing(two)
      : sign * (numeric ? one - two : collator.compare(one, two));
    const sorted = order === "none" ? this.rows : this.rows.toSorted((one, two) => compare(key(one), key(two)));
    this.body.replaceChildren(...sorted);
  }

  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of this.rows) {
      const text = [...row.cells].map(cell => cell.textContent).join("\n").toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
  }

  /** The names of the columns and the rows that the filter leaves, as text, with quotes where a sign needs them. */
  text(sign) {
    const rows = [...this.body.rows].filter(row => !row.hidden).map(row => this.raw.get(row));
    const cell = text => text.includes(sign) || /["\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    return [JSON.parse(this.element.dataset.columns), ...rows].map(row => row.map(cell).join(sign) + "\n").join("");
  }

  tsv() { this.copy(this.text("\t")); }
  latex() { this.copy(this.element.dataset.latex); }
  csv() { page.save(`${this.element.dataset.name}.csv`, new Blob([this.text(",")], {type: "text/csv"})); }

  async copy(text) {
    await page.copy(text);
    this.element.querySelector("[role=status]").textContent = "Copied.";
  }
}

for (const element of document.querySelectorAll(".table")) new Table(element);
for (const block of document.querySelectorAll(".copied")) {
  const [text, button, status] = block.children;
  button.addEventListener("click", async () => {
    await page.copy(text.textContent);
    status.textContent = "Copied.";
  });
}
/* On paper the config is open. */
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
