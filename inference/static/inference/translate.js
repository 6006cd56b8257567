// Batch translation: what htmx does not do. Everything here is a convenience; the forms work without it.
"use strict";

(() => {
  htmx.config.includeIndicatorStyles = false;
  htmx.config.allowEval = false;

  const byId = (id) => document.getElementById(id);

  // --- A job's page

  // Polling goes on while the server is away; somebody should know why nothing moves.
  const offline = byId("offline");
  if (offline) {
    document.addEventListener("htmx:afterRequest", (event) => { offline.hidden = Boolean(event.detail.successful); });
    announceChanges();
  }

  function say(words, shown) {
    const place = byId("announcement");
    place.classList.toggle("visually-hidden", !shown);
    place.textContent = words;
  }

  // The status alone: somebody who listens has no use for a number each second.
  function announceChanges() {
    let last = byId("job-status").textContent;
    document.addEventListener("htmx:afterSwap", () => {
      const status = byId("job-status").textContent;
      if (status === last) return;
      last = status;
      say(byId("job-summary").innerText, false); // the page shows it already
    });
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) {
      const copied = await copy(button.dataset.copy).catch(() => false);
      say(copied ? button.dataset.copied : button.dataset.notCopied, true);
    }
    const danger = event.target.closest("[data-confirm]");
    if (danger && !confirm(danger.dataset.confirm)) event.preventDefault();
  });

  async function copy(url) {
    const response = await fetch(url, { redirect: "manual" });
    if (response.type === "opaqueredirect") location.reload(); // the login is over: the page leads there, and back
    if (!response.ok) return false;
    const text = decode(await response.arrayBuffer());
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
    return copyByHand(text); // over plain HTTP there is no clipboard but on this machine
  }

  // A file in UTF-16 has a byte order mark: others are not accepted.
  function decode(buffer) {
    const [first, second] = new Uint8Array(buffer);
    const encoding = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
    return new TextDecoder(encoding).decode(buffer);
  }

  function copyByHand(text) {
    const area = document.createElement("textarea");
    const focused = document.activeElement;
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return copied;
  }

  // --- The form

  const form = byId("new-translation");
  if (!form) return;

  const files = byId("id_files");
  const problem = byId("files-problem");
  const csvOptions = byId("csv-options");
  const drop = files.closest(".drop");

  byId("errors")?.focus();

  const swap = byId("swap-languages");
  const source = byId("id_source_language");
  const target = byId("id_target_language");
  const showSwap = () => { swap.disabled = source.value === "auto"; }; // no text can be translated into it
  source.addEventListener("change", showSwap);
  swap.addEventListener("click", () => { [source.value, target.value] = [target.value, source.value]; });
  showSwap();

  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, () => drop.classList.add("over"));
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));

  files.addEventListener("change", showFiles);
  form.addEventListener("submit", (event) => {
    checkSize();
    if (!problem.hidden) {
      event.preventDefault();
      files.focus();
    }
  });
  showFiles();

  function showFiles() {
    const chosen = [...files.files];
    const label = byId("chosen-files");
    label.textContent = chosen.map((file) => file.name).join(", ") || label.dataset.empty;
    checkSize();
    const table = chosen.find((file) => /\.(csv|tsv)$/i.test(file.name));
    csvOptions.hidden = !table;
    if (table) offerColumns(table);
  }

  // What the server would refuse without reading it, so that nothing that was typed is lost.
  function checkSize() {
    const chosen = [...files.files];
    const size = chosen.reduce((sum, file) => sum + file.size, new Blob([byId("id_text").value]).size);
    const { tooMany, tooLarge } = problem.dataset;
    problem.textContent = chosen.length > Number(form.dataset.maxFiles) ? tooMany : size > Number(form.dataset.maxBytes) ? tooLarge : "";
    problem.hidden = problem.textContent === "";
  }

  // The names in the first row, as far as that has no line break in quotes: to choose from, not to rely on.
  async function offerColumns(file) {
    const text = await file.slice(0, 65536).text();
    const row = text.split(/\r?\n/, 1)[0].replace(/^\ufeff/, "");
    const count = (delimiter) => row.split(delimiter).length;
    const delimiter = [",", ";", "\t", "|"].reduce((best, next) => (count(next) > count(best) ? next : best));
    const names = row.split(delimiter).map((name) => name.trim().replace(/^"(.*)"$/, "$1"));
    byId("column-names").replaceChildren(...names.filter(Boolean).map((name) => new Option(name, name)));
    if (names.length === 1 && !byId("id_column").value) byId("id_column").value = names[0];
  }
})();
