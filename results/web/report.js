"use strict";
/* The page of a run: figures, tables that sort, filter and copy, and texts that copy. */
const report = {
  limits: page.json("limits"),
  collator: new Intl.Collator("en", {numeric: true}),

  /** Fill the pictures, each apart from the page and from the others, as images. */
  async draw() {
    if (!document.getElementById("pictures")) return;
    const pictures = JSON.parse(new TextDecoder().decode(await page.unpacked("pictures")));
    for (const image of document.querySelectorAll("img[data-figure]"))
      image.src = "data:image/svg+xml," + encodeURIComponent(pictures[image.dataset.figure]);
    for (const button of document.querySelectorAll("button[data-save]"))
      button.addEventListener("click", () => {
        const name = button.dataset.save;
        page.save(`${name}.svg`, new Blob([pictures[name]], {type: "image/svg+xml"}));
      });
  },

  /** The order of two texts of a column: numbers by value, words as people order them; what is missing is last. */
  comparison(numeric, sign) {
    return (one, two) => {
      const missing = [one, two].map(text => text === "" || (numeric && Number.isNaN(Number(text))));
      if (missing[0] || missing[1]) return missing[0] - missing[1];
      return sign * (numeric ? Number(one) - Number(two) : report.collator.compare(one, two));
    };
  },

  /** Rows as text, with quotes around cells that hold a sign of the format. */
  separated(rows, sign) {
    const cell = text => text.includes(sign) || /["\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    return rows.map(row => row.map(cell).join(sign)).join("\n") + "\n";
  },
};

/** A table of the page: its rows are read when they are first needed. */
class Table {
  constructor(element) {
    this.element = element;
    this.body = element.querySelector("tbody");
    this.heads = [...element.querySelectorAll("thead th")];
    this.status = element.querySelector("[role=status]");
    this.count = element.querySelector(".count");
    this.search = element.querySelector("input");
    this.column = -1;
    this.sign = 0;
    this.heads.forEach((head, column) => head.firstChild.addEventListener("click", () => this.sort(column)));
    this.search?.addEventListener("input", () => this.show());
    for (const button of element.querySelectorAll("button[data-do]"))
      button.addEventListener("click", () => this[button.dataset.do]());
    const details = element.closest("details");
    if (details) details.addEventListener("toggle", () => this.body.rows.length || this.show());
    else if (!this.body.rows.length) this.show();
  }

  async read() {
    this.content ??= page.unpacked(this.element.dataset.block).then(bytes => {
      const content = JSON.parse(new TextDecoder().decode(bytes));
      content.files = content.names.map(name => content.raw[content.columns.indexOf(name)]);
      content.cells = content.cells.map((cells, column) => cells ?? content.files[column]);
      return content;
    });
    return this.content;
  }

  /** The places of the rows that the filter leaves, in the order of the table. */
  async places() {
    const content = await this.read();
    const words = (this.search?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const all = content.raw.length ? [...content.raw[0].keys()] : [];
    const left = all.filter(place => {
      const text = content.cells.map(cells => cells[place]).join("\n").toLowerCase();
      return words.every(word => text.includes(word));
    });
    if (this.sign) {
      const texts = content.files[this.column];
      const compare = report.comparison(content.numeric[this.column], this.sign);
      left.sort((one, two) => compare(texts[one], texts[two]));
    }
    return left;
  }

  /** Sort upwards, then downwards, then as it was. */
  sort(column) {
    this.sign = column !== this.column ? 1 : {0: 1, 1: -1, "-1": 0}[this.sign];
    this.column = column;
    const said = {0: "none", 1: "ascending", "-1": "descending"}[this.sign];
    this.heads.forEach((head, other) => head.setAttribute("aria-sort", other === column ? said : "none"));
    return this.show();
  }

  async show() {
    const content = await this.read(), places = await this.places();
    const shown = places.slice(0, report.limits.rows);
    this.body.replaceChildren(...shown.map(place => this.row(content, place)));
    const all = content.raw[0]?.length ?? 0;
    const rows = `${all.toLocaleString("en")} row${all === 1 ? "" : "s"}`;
    const found = places.length === all ? rows : `${places.length.toLocaleString("en")} of ${rows}`;
    this.count.textContent = shown.length === places.length ? found : `${shown.length} of ${found} shown`;
    this.status.textContent = "";
  }

  row(content, place) {
    const row = document.createElement("tr");
    content.cells.forEach((cells, column) => {
      const numeric = content.numeric[column];
      const cell = document.createElement(column === 0 && !numeric ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = "row";
      if (numeric) cell.className = "n";
      const address = content.links[column]?.[place];
      const inside = address ? cell.appendChild(document.createElement("a")) : cell;
      if (address) inside.href = address;
      inside.textContent = cells[place];
      row.append(cell);
    });
    return row;
  }

  /** The numbers of the file, of the rows that the filter leaves, below the names of the columns. */
  async numbers() {
    const content = await this.read(), places = await this.places();
    const names = content.columns.map(name => name.replace(/^(?='*[=+@\t\r\n＝＋－＠-])/, "'"));  // as in the file
    return [names, ...places.map(place => content.raw.map(column => column[place]))];
  }

  async tsv() {
    const rows = await this.numbers();
    await page.copy(report.separated(rows, "\t"));
    this.say(rows.length - 1);
  }

  async csv() {
    const text = report.separated(await this.numbers(), ",");
    page.save(`${this.element.dataset.name}.csv`, new Blob([text], {type: "text/csv"}));
  }

  async latex() {
    const {latex} = await this.read(), places = await this.places(), most = report.limits.latex;
    if (places.length > most) {
      this.status.textContent = `A page of print holds ${most} rows: filter the table first.`;
      return;
    }
    await page.copy([...latex.head, ...places.map(place => latex.rows[place]), ...latex.foot].join("\n") + "\n");
    this.say(places.length);
  }

  say(rows) { this.status.textContent = `Copied ${rows.toLocaleString("en")} row${rows === 1 ? "" : "s"}.`; }
}

for (const element of document.querySelectorAll(".table")) new Table(element);
for (const block of document.querySelectorAll(".copied")) {
  const [text, button, status] = block.children;
  button.addEventListener("click", async () => {
    await page.copy(text.textContent);
    status.textContent = "Copied.";
  });
}
report.draw();

/* Paper has no buttons: what is closed is opened, but for the numbers of figures. */
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not(.numbers, [open], nav details)")];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
