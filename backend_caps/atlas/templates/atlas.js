"use strict";

// Filters the table of backends, and answers a question about them. The patterns and tests are
// those of `question.py`; a row's values are numbers of its table's `values`.

(() => {
  const PAGE = 20;
  const LEVELS = ["none", "upper_bound", "exact"];
  const ORDER = ["fits", "may fit", "does not fit"];
  const CLASSES = ["fits", "may", "not"];
  const MACHINE = ["compute_capability", "platform"]; // of what is set on it the condition
  const MACHINES = { H100: "h100", B200: "b200", MI300X: "rocm", CPU: "on cpu" };
  const parse = (node) => JSON.parse(node.textContent);
  const questions = parse(document.getElementById("questions")).map((each) => ({
    ...each,
    pattern: new RegExp(each.pattern, "g"),
  }));
  const releases = parse(document.getElementById("releases"));
  const form = document.getElementById("ask");
  const table = document.getElementById("backends");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells].slice(2);
  const columns = heads.map((head) => head.querySelector("a").getAttribute("href").match(/\/(\w+)\.html/)[1]);
  const more = document.getElementById("more");
  const known = new Map();
  let shown = [];
  let questioned = [];
  let latest = 0;

  // Data

  /**
   * Turn a stored table into rows. A cell is [capability, value, origin, file, line, class that
   * states it, values under conditions...], all but the line by number; -1 is none.
   */
  function decode(stored) {
    const keys = new Map(); // of this table alone: its numbers mean nothing in another
    const keyOf = (numbers) => keys.get(numbers) ?? keys.set(numbers, {}).get(numbers);
    const placeOf = (file, line) => (file < 0 ? null : `${stored.files[file]}:${line}`);
    const cellsOf = (cells) =>
      new Map(
        cells.map(([name, value, origin, file, line, from, ...when]) => [
          stored.capabilities[name],
          {
            value: stored.values[value],
            words: stored.words[value],
            origin: stored.origins[origin],
            at: placeOf(file, line),
            from: from < 0 ? null : stored.names[from],
            when: when.map((number) => stored.values[number]),
            key: keyOf([value, ...when].join(" ")),
          },
        ]),
      );
    const settingsOf = (settings) =>
      settings.map(([own, set, accepted, words, file, line]) => ({
        name: stored.names[own],
        set: stored.texts[set],
        accepted: accepted === 1,
        words: stored.texts[words],
        at: placeOf(file, line),
      }));
    const root = cellsOf(stored.root);
    return stored.rows.map(([name, registered, platforms, page, cells, settings, refuted]) => ({
      of: stored.distribution,
      version: stored.version,
      name,
      registered,
      platforms,
      page,
      text: `${name} ${registered.join(" ")} ${stored.distribution}`.toLowerCase(),
      flat: [name, ...registered].map(flat).filter((each) => each.length > 3),
      cells: cellsOf(cells),
      refuted,
      root,
      tried: stored.tried,
      settings: settingsOf(settings),
      followed: [...new Set(settings.map(([own]) => stored.names[own]))].sort(),
    }));
  }

  const flat = (text) => text.toLowerCase().replace(/[\s_.-]|backend|attention|attn/g, "");

  function keep(stored) {
    known.set(`${stored.distribution} ${stored.version}`, decode(stored));
  }

  /** Load a release's table by a script, which also works from disk; that of a page lacks settings. */
  function load(of, version, isAsked) {
    const key = `${of} ${version}`;
    const rows = known.get(key);
    if (rows && !(isAsked && rows.length && rows[0].tried === null)) return Promise.resolve(rows);
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `tables/${of}-${version}.js`;
      script.onload = () => resolve(known.get(key));
      script.onerror = () => reject(new Error(`${script.src} cannot be read`));
      document.head.append(script);
    });
  }

  // Question

  function askedIn(question) {
    let rest = ` ${question.toLowerCase().split(/\s+/).filter(Boolean).join(" ")} `;
    const found = [];
    for (const row of questions) {
      for (const match of rest.matchAll(row.pattern)) {
        const number = match.slice(1).find(Boolean);
        const value = number === undefined ? row.value : numberOf(number, row.test);
        const same = (each) =>
          each.capability === row.capability && JSON.stringify(each.value) === JSON.stringify(value);
        if (!found.some(same)) found.push({ ...row, value, words: match[0].trim(), known: new Map() });
      }
      rest = rest.replace(row.pattern, " ; ");
    }
    return { asked: found, rest };
  }

  function numberOf(text, test) {
    if (test !== "runs_on") return Number(text);
    return text.includes(".") ? text : `${text.slice(0, -1)}.${text.slice(-1)}`;
  }

  const members = (value) => (Array.isArray(value) ? value : [value]);
  const number = (version) => version.split(".").reduce((major, minor) => 1000 * major + Number(minor), 0);
  const TESTS = {
    any_of: (value, wanted) => wanted.some((each) => members(value).includes(each)),
    all_of: (value, wanted) => wanted.every((each) => members(value).includes(each)),
    is: (value, wanted) => value === wanted,
    takes(sizes, size) {
      if (sizes.exact !== undefined) return sizes.exact === size;
      if (sizes.multiple_of !== undefined) return size % sizes.multiple_of === 0;
      return sizes.one_of === undefined ? null : sizes.one_of.includes(size);
    },
    runs_on: (windows, version) =>
      windows.some((window) => {
        const [, low, high] = window.match(/^>= ([\d.]+)(?: and < ([\d.]+))?$/);
        return number(low) <= number(version) && (!high || number(version) < number(high));
      }),
    at_most: (value, wanted) => LEVELS.indexOf(value) <= LEVELS.indexOf(wanted),
    at_least: (value, wanted) => value === null || value >= wanted,
  };

  /** Compare a cell once for all rows of a table that have the same values. */
  function answerOf(cell, asked) {
    let answer = asked.known.get(cell.key);
    if (answer === undefined) asked.known.set(cell.key, (answer = compared(cell, asked)));
    return answer;
  }

  function compared(cell, asked) {
    const isSilent = cell.value === "undeclared" && !cell.when.length;
    if (isSilent && asked.capability === "graph_replay") return 2;
    if (cell.value === "depends" || cell.value === "undeclared") return 1;
    const fits = (value) => (value === "any" ? true : TESTS[asked.test](value, asked.value));
    const found = new Set([cell.value, ...cell.when].map(fits));
    if (found.size > 1) return 1;
    return found.has(true) ? 0 : found.has(false) ? 2 : 1;
  }

  /** Find the cell that answers: the class's own, or that of the root where it says nothing. */
  function cellFor(row, capability) {
    const cell = row.cells.get(capability);
    const root = row.root.get(capability);
    const isSilent = !cell || (cell.value === "undeclared" && (!cell.at || cell.at === root?.at));
    return (isSilent && root) || cell;
  }

  /** Return whether a value is one that is asked for, or one that decides of it. */
  function isAsked(value, asked, accepted) {
    if (asked.test === "any_of") return asked.value.includes(value);
    if (asked.test === "at_least") return accepted ? value >= asked.value : value <= asked.value;
    return value === asked.value;
  }

  /** Find the setting that decides for a name: one that is taken, or one of all refused. */
  function decided(row, name, wanted, asked, all) {
    const found = row.settings.filter(
      (each) =>
        each.name === name &&
        asked.capability in each.set &&
        (Object.keys(each.set).length === 1 || !MACHINE.includes(asked.capability)) &&
        Object.entries(each.set).every(([key, value]) => {
          const own = all.findLast((other) => other.capability === key);
          return own && isAsked(value, own, each.accepted);
        }),
    );
    const refused = found.filter((each) => !each.accepted);
    const refuses = (value) => refused.some((each) => each.set[asked.capability] === value);
    const isNumber = asked.test === "at_least"; // a larger one is refused where a smaller one is
    if (refused.length && (isNumber || wanted.every(refuses))) return refused[0];
    return found.find((each) => each.accepted);
  }

  /** What a server decides alike for all names, or those of the question; null where the class says no. */
  function byServer(row, asked, all) {
    if (!row.followed.length || stated(row, asked) === 2) return null;
    const names = row.followed.filter((name) => all.named?.has(name));
    const wanted = (row.tried?.[asked.capability] ?? []).filter((value) => isAsked(value, asked, false));
    const found = (names.length ? names : row.followed).map((name) => decided(row, name, wanted, asked, all));
    return found.every((each) => each && each.accepted === found[0].accepted) ? found[0] : null;
  }

  /** 0 fits, 1 may fit, 2 does not fit; what a run of the kit refutes is no yes. */
  function answerTo(row, asked, all) {
    const { accepted } = byServer(row, asked, all) ?? {};
    const answer = accepted === undefined ? stated(row, asked) : accepted ? 0 : 2;
    return answer === 0 && asked.capability in row.refuted ? 1 : answer;
  }

  function stated(row, asked) {
    if (asked.capability === "platform") return asked.value in row.platforms ? 0 : 1;
    const cell = cellFor(row, asked.capability);
    if (!cell) return 1;
    const answer = answerOf(cell, asked);
    return answer === 0 && asked.test === "runs_on" && !("cuda" in row.platforms) ? 1 : answer;
  }

  /** The value behind an answer, in words, with its line. */
  function reasonOf(row, asked, all) {
    const { words, at } = byServer(row, asked, all) ?? {};
    if (words !== undefined) return { words, at, from: "the server" };
    const chosen = `chosen on ${Object.keys(row.platforms).join(", ") || "no platform that is read"}`;
    if (asked.capability === "platform") return { words: chosen, at: row.platforms[asked.value] };
    const cell = cellFor(row, asked.capability);
    if (!cell) return { words: "not stated" };
    const isOther = asked.test === "runs_on" && answerOf(cell, asked) === 0 && !("cuda" in row.platforms);
    const from = cell === row.cells.get(asked.capability) ? cell.from : "the root";
    return { words: isOther ? `${cell.words}, ${chosen}` : cell.words, at: cell.at, from };
  }

  /** The worst of a row's answers, and how many are open. */
  function verdict(row, asked) {
    const answers = asked.map((each) => answerTo(row, each, asked));
    return { row, answer: Math.max(0, ...answers), open: answers.filter((own) => own === 1).length };
  }

  // Filter

  async function update() {
    const { question, of, release, machine, kind } = form.elements;
    const text = [question.value, MACHINES[machine.value], kind.value].filter(Boolean).join(" ; ");
    const { asked, rest } = askedIn(text);
    const turn = (latest += 1);
    let wanted;
    try {
      wanted = await rowsOf(of.value, release.value, asked.length > 0);
    } catch (error) {
      document.getElementById("count").textContent = `${error.message}; build the atlas again.`;
      return;
    }
    if (turn !== latest) return; // another question was typed while a table was loaded
    asked.named = spelledIn(question.value, wanted);
    // Of those that may fit, the ones with the fewest open ends come first.
    const kinds = ORDER.map(() => asked.map(() => []).concat([[]]));
    for (const row of namedIn(wanted, question.value, rest, asked)) {
      const judged = verdict(row, asked);
      kinds[judged.answer][judged.answer === 1 ? judged.open : 0].push(judged);
    }
    const found = kinds.map((own) => own.flat());
    questioned = asked;
    shown = found.flat();
    table.classList.toggle("asked", asked.length > 0);
    say(asked, found);
    render(PAGE);
    remember();
  }

  /**
   * Find the rows whose names a question has: all where it has none. Where nothing is asked, they
   * are those that hold its words.
   */
  function namedIn(rows, question, rest, asked) {
    const words = flat(rest);
    const whole = rows.filter((row) => row.flat.some((name) => words.includes(name)));
    const typed = question.trim().toLowerCase();
    if (whole.length) return whole;
    if (asked.length || !typed) return rows;
    const each = typed.split(/[\s,]+/);
    return rows.filter((row) => each.every((word) => row.text.includes(word)));
  }

  /** Find the names that a question has as words, whose parts may be written apart. */
  function spelledIn(question, rows) {
    const text = question.toLowerCase().replace(/\s+/g, " ");
    const names = new Set(rows.flatMap((row) => row.followed));
    const escaped = (name) => name.toLowerCase().replace(/\W/g, "\\$&");
    const spelled = (name) => new RegExp(`\\b${escaped(name).replaceAll("_", "[ _-]?")}\\b`);
    return new Set([...names].filter((name) => spelled(name).test(text)));
  }

  async function rowsOf(of, version, isAsked = true) {
    const wanted = Object.entries(releases)
      .filter(([name]) => !of || name === of)
      .map(([name, versions]) => load(name, (of && version) || versions[0], isAsked));
    return (await Promise.all(wanted)).flat();
  }

  function say(asked, found) {
    const understood = asked.map((each) => `${each.words} → ${each.capability}`).join(" · ");
    document.getElementById("understood").textContent = understood;
    document.getElementById("count").textContent = asked.length
      ? ORDER.map((words, at) => `${found[at].length} ${words}`).join(", ")
      : `${shown.length} backends`;
  }

  // Show

  const element = (name, text = "", kind = "") =>
    Object.assign(document.createElement(name), { textContent: text, className: kind });

  /** Let a text be broken where a name has parts; what is copied from it has no mark of that. */
  function broken(name, text, kind, between = /(?<=[_/.])/) {
    const made = element(name, "", kind);
    text.split(between).forEach((part, at) => made.append(...(at ? [document.createElement("wbr")] : []), part));
    return made;
  }

  function render(most) {
    const nothing = element("tr");
    nothing.append(Object.assign(element("td", "Nothing matches"), { colSpan: heads.length + 2 }));
    body.replaceChildren(...(shown.length ? shown.slice(0, most).map(rowOf) : [nothing]));
    more.hidden = shown.length <= most;
    more.textContent = `Show ${Math.max(0, shown.length - most)} more`;
  }

  function rowOf({ row, answer }) {
    const made = element("tr");
    const head = element("th");
    head.scope = "row";
    const link = broken("a", row.name, "", /(?<=[_.a-z])(?=[A-Z])/);
    link.href = row.page;
    head.append(link, element("small", [...row.registered, `${row.of} ${row.version}`].join(" · ")));
    const said = element("td", "", "answer");
    said.append(element("span", ORDER[answer], CLASSES[answer]));
    const silent = [];
    for (const asked of answer ? questioned : []) {
      if (answerTo(row, asked, questioned) !== answer) continue;
      const { words, at, from } = reasonOf(row, asked, questioned);
      const run = row.refuted[asked.capability];
      if (run) said.append(element("small", `${asked.capability}: a run refutes it: ${run}`, "refuted"));
      if (words === "not stated") silent.push(asked.capability);
      else said.append(broken("small", `${asked.capability}: ${words}${from ? ` (${from})` : ""}`));
      if (at) said.append(broken("small", at));
    }
    if (silent.length) said.append(broken("small", `not stated: ${silent.join(", ")}`));
    made.append(head, said, ...columns.map((name, at) => cellOf(row, name, heads[at].textContent)));
    return made;
  }

  function cellOf(row, name, label) {
    const cell = cellFor(row, name);
    const made = element("td");
    if (!cell) return made;
    made.dataset.name = label;
    made.append(broken("span", cell.words, cell.origin));
    if (name in row.refuted) made.append(element("strong", "refuted by a run", "refuted"));
    return made;
  }

  // Links: the address keeps what was asked.

  function remember() {
    const asked = [...new FormData(form)].filter(([, value]) => value);
    history.replaceState(null, "", `${location.pathname}#${new URLSearchParams(asked)}`);
  }

  function recall() {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const field of ["question", "of", "machine", "kind"]) {
      form.elements[field].value = asked.get(field) ?? "";
    }
    offerReleases(asked.get("release") ?? "");
    return update();
  }

  function offerReleases(chosen) {
    const { of, release } = form.elements;
    release.replaceChildren(new Option("newest", ""));
    for (const version of releases[of.value] ?? []) release.append(new Option(version));
    release.value = chosen;
    release.disabled = !of.value;
  }

  // Not on `change`, which a select sends after `input`.
  form.addEventListener("input", (event) => {
    if (event.target.name === "of") offerReleases("");
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { offerReleases(""); update(); }));
  more.addEventListener("click", () => render(body.rows.length + 10 * PAGE));
  addEventListener("hashchange", recall);
  addEventListener("beforeprint", () => render(Infinity));
  addEventListener("afterprint", () => render(PAGE));
  document.querySelectorAll("script.table").forEach((node) => keep(parse(node)));
  globalThis.atlas = { askedIn, keep, rowsOf, spelledIn, update, verdict };
  recall();
})();
