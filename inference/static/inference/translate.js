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
    const show = (shown) => () => { offline.hidden = !shown; };
    document.addEventListener("htmx:sendError", show(true));
    document.addEventListener("htmx:responseError", show(true));
    document.addEventListener("htmx:afterOnLoad", show(false));
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) {
      const response = await fetch(button.dataset.copy);
      if (!response.ok) return;
      await navigator.clipboard.writeText(await response.text());
      button.textContent = button.dataset.copied;
    }
    const danger = event.target.closest("[data-confirm]");
    if (danger && !confirm(danger.dataset.confirm)) event.preventDefault();
  });

  // --- The form

  const form = byId("new-translation");
  if (!form) return;

  const files = byId("id_files");
  const problem = byId("files-problem");
  const csvOptions = byId("csv-options");
  const drop = files.closest(".drop");

  byId("errors")?.focus();

  byId("swap-languages").addEventListener("click", () => {
    const source = byId("id_source_language");
    const target = byId("id_target_language");
    if (source.value === "auto") return; // no text can be translated into it
    [source.value, target.value] = [target.value, source.value];
  });

  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, () => drop.classList.add("over"));
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));

  files.addEventListener("change", showFiles);
  form.addEventListener("submit", (event) => {
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
    const size = chosen.reduce((sum, file) => sum + file.size, 0);
    problem.hidden = size <= Number(form.dataset.maxBytes);
    problem.textContent = problem.hidden ? "" : problem.dataset.tooLarge;
    const table = chosen.find((file) => /\.(csv|tsv)$/i.test(file.name));
    csvOptions.hidden = !table;
    if (table) offerColumns(table);
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
