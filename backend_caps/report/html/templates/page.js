"use strict";

// Filters, sorts and opens the tables that the page already shows. What a plugin says is put in
// as text, never as markup.

(() => {
  const start = performance.now();
  const LONG = 30;
  const panel = document.getElementById("panel");
  const panelTitle = document.getElementById("panel-title");
  const panelText = document.getElementById("panel-text");

  function element(name, text) {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
  }

  function listOf(details) {
    const list = document.createElement("dl");
    for (const [term, text] of details) list.append(element("dt", term), paragraph(text));
    return list;
  }

  /** Let paths and dotted names be broken between their parts, and no line's number be. */
  function paragraph(text) {
    const made = element("dd", "");
    for (const word of text.split(/(\s+)/)) {
      const parts = word.length > LONG ? word.split(/(?<=[/._])/) : [word];
      parts.forEach((part, at) => made.append(...(at ? [document.createElement("wbr")] : []), part));
    }
    return made;
  }

  function openPanel(title, ...content) {
    panelTitle.textContent = title;
    panelText.replaceChildren(...content);
    panel.showModal();
  }

  document.getElementById("panel-close").addEventListener("click", () => panel.close());
  panel.addEventListener("click", (event) => {
    if (event.target === panel) panel.close();
  });

  /** What a cell says, in its text and in its shapes. */
  function contentOf(cell) {
    const shapes = [...cell.querySelectorAll("svg[aria-label]")].map((svg) => svg.ariaLabel);
    const text = [...cell.childNodes]
      .filter((node) => node.nodeName !== "svg" && node.nodeName !== "SMALL")
      .map((node) => node.textContent)
      .join("")
      .trim();
    return { text, shapes, sorted: text || shapes.join(" ") };
  }

  class Grid {
    constructor(root) {
      const body = root.querySelector("tbody");
      this.body = body;
      this.rows = [...body.rows];
      this.heads = [...root.querySelectorAll("thead th")];
      this.columns = this.heads.map((head) => head.textContent.trim());
      this.data = JSON.parse(root.querySelector("script").textContent);
      const isWhole = root.dataset.seeks === "rows";
      this.texts = this.rows.map((row) =>
        (isWhole ? row : row.cells[0]).textContent.toLowerCase(),
      );
      this.count = root.querySelector("output");
      this.table = root.querySelector("table");
      this.contents = this.rows.map(() => []);
      this.numbers = new Map(this.rows.map((row, number) => [row, number]));
      this.form = root.querySelector("form");
      this.nothing = this.addNothing();
      this.addFilter();
      this.addSorting();
      this.addKeys(root.querySelector(".wide"));
      this.filter();
    }

    /** Read a cell once, when it is first asked for: a large table opens without it. */
    contentAt(number, column) {
      this.contents[number][column] ??= contentOf(this.rows[number].cells[column]);
      return this.contents[number][column];
    }

    // Filter

    /** Add what says that no row is left, in a body of its own: it is none of the rows. */
    addNothing() {
      const body = this.table.createTBody();
      body.className = "nothing";
      const cell = body.insertRow().insertCell();
      cell.colSpan = this.heads.length;
      cell.textContent = "Nothing matches";
      return body;
    }

    addFilter() {
      const { text, column } = this.form.elements;
      this.columns.forEach((name, at) => {
        if (at > 0) column.append(new Option(name, String(at)));
      });
      // Not on `change`, which a select sends after `input`: the old value would be looked for.
      this.form.addEventListener("input", (event) => {
        if (event.target === column) this.offerValues();
        this.filter();
      });
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("reset", () => {
        // The browser empties the fields only after this, so they are emptied here.
        text.value = column.value = "";
        this.offerValues();
        this.filter();
      });
      this.form.hidden = false;
    }

    offerValues() {
      const { column, value } = this.form.elements;
      const at = Number(column.value);
      const texts = new Set();
      const shapes = new Set();
      if (at) {
        this.rows.forEach((_, number) => {
          const content = this.contentAt(number, at);
          if (content.text) texts.add(content.text);
          content.shapes.forEach((shape) => shapes.add(shape));
        });
      }
      value.replaceChildren(new Option("anything", ""));
      for (const [label, words] of [["origin and evidence", shapes], ["value", texts]]) {
        const group = document.createElement("optgroup");
        group.label = label;
        [...words].sort().forEach((word) => group.append(new Option(word, word)));
        if (words.size) value.append(group);
      }
      value.disabled = !at;
    }

    filter() {
      const { text, column, value } = this.form.elements;
      const wanted = text.value.trim().toLowerCase();
      const at = Number(column.value);
      let shown = 0;
      this.rows.forEach((row, number) => {
        const isShown =
          this.texts[number].includes(wanted) && this.hasValue(number, at, value.value);
        if (row.hidden === isShown) row.hidden = !isShown;
        shown += isShown ? 1 : 0;
      });
      this.nothing.hidden = shown > 0;
      if (this.current.parentElement.hidden) this.stop(this.heads[0]);
      const { counted } = this.count.dataset;
      this.count.textContent = `${shown} of ${this.rows.length} ${counted}`;
    }

    hasValue(number, at, wanted) {
      if (!at || !wanted) return true;
      const content = this.contentAt(number, at);
      return content.text === wanted || content.shapes.includes(wanted);
    }

    // Sort

    addSorting() {
      this.heads.forEach((head, at) => {
        const button = document.createElement("button");
        button.type = "button";
        button.tabIndex = -1;
        button.append(...head.childNodes);
        button.addEventListener("click", () => this.sort(at));
        head.append(button);
      });
    }

    sort(at) {
      const head = this.heads[at];
      const was = head.getAttribute("aria-sort");
      this.heads.forEach((each) => each.removeAttribute("aria-sort"));
      const numbers = [...this.rows.keys()];
      if (was !== "descending") {
        const way = was === "ascending" ? -1 : 1;
        const { compare } = new Intl.Collator("en", { numeric: true });
        const words = numbers.map((number) => this.contentAt(number, at).sorted);
        // What is in no order of its own, such as `undeclared`, comes behind what is.
        const order = this.data.orders[at];
        const places = words.map((word) =>
          order.includes(word) ? order.indexOf(word) : order.length,
        );
        numbers.sort(
          (one, other) =>
            way * (places[one] - places[other] || compare(words[one], words[other])) || one - other,
        );
        head.setAttribute("aria-sort", was === "ascending" ? "descending" : "ascending");
      }
      this.body.append(...numbers.map((number) => this.rows[number]));
    }

    // Keys: the table is one stop of the Tab key, and arrows move in it.

    addKeys(region) {
      this.table.setAttribute("role", "grid");
      region.removeAttribute("tabindex");
      this.current = this.heads[0];
      this.target(this.current).tabIndex = 0;
      this.table.addEventListener("keydown", (event) => this.press(event));
      this.table.addEventListener("click", (event) => {
        const cell = event.target.closest("tbody th, tbody td");
        if (this.body.contains(cell)) {
          this.move(cell);
          this.open(cell);
        }
      });
    }

    target(cell) {
      return cell.querySelector("button") ?? cell;
    }

    /** Make a cell the one that the Tab key reaches. */
    stop(cell) {
      this.target(this.current).tabIndex = -1;
      this.current = cell;
      this.target(cell).tabIndex = 0;
    }

    move(cell) {
      this.stop(cell);
      this.target(cell).focus();
    }

    press(event) {
      const cell = event.target.closest("th, td");
      if (!cell || event.altKey || event.metaKey) return;
      if ((event.key === "Enter" || event.key === " ") && this.body.contains(cell)) {
        event.preventDefault();
        this.open(cell);
        return;
      }
      const next = this.next(cell, event.key, event.ctrlKey);
      if (next) {
        event.preventDefault();
        this.move(next);
      }
    }

    next(cell, key, isControl) {
      const rows = [this.heads[0].parentElement, ...this.body.rows].filter((row) => !row.hidden);
      const row = rows.indexOf(cell.parentElement);
      const column = cell.cellIndex;
      const last = this.heads.length - 1;
      const places = {
        ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1],
        ArrowUp: [row - 1, column],
        ArrowDown: [row + 1, column],
        Home: [isControl ? 0 : row, 0],
        End: [isControl ? rows.length - 1 : row, last],
        PageUp: [Math.max(row - 10, 0), column],
        PageDown: [Math.min(row + 10, rows.length - 1), column],
      };
      const place = places[key];
      return place && rows[place[0]]?.cells[place[1]];
    }

    // Open

    open(cell) {
      const row = cell.parentElement;
      const number = this.numbers.get(row);
      const column = cell.cellIndex;
      const { details, rows } = this.data;
      const name = this.contentAt(number, 0).text;
      const own = listOf(details[rows[number][0]]);
      const content = details[rows[number][column]];
      if (column === 0) {
        openPanel(name, own);
      } else if (content.length) {
        openPanel(`${name}: ${this.columns[column]}`, listOf(content), element("h3", name), own);
      } else {
        openPanel(`${name}: ${this.columns[column]}`, own);
      }
    }
  }

  document.querySelectorAll(".grid").forEach((root) => {
    if (root.querySelector("tbody tr")) new Grid(root);
  });
  performance.measure("open", { start, end: performance.now() });
})();
