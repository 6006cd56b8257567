// The parameter sets of the form: reading them, filling them from presets, adding and removing them.

import { setup, text } from "./setup.js";

const container = document.getElementById("sets");
const addButton = document.getElementById("add-set");

const readers = {
  number: (input) => (input.value === "" ? undefined : input.valueAsNumber),
  lines: (input) => nonEmpty(input.value.split("\n").map((line) => line.replaceAll("\\n", "\n"))),
  ids: (input) => nonEmpty(input.value.split(",").map((id) => id.trim()))?.map(Number),
  biases: (input) => {
    const pairs = nonEmpty(input.value.split(",").map((pair) => pair.trim()));
    return pairs && Object.fromEntries(pairs.map((pair) => pair.split(":").map((part) => Number(part))));
  },
  flag: (input) => input.checked || undefined,
};

function nonEmpty(parts) {
  const found = parts.filter((part) => part !== "");
  return found.length ? found : undefined;
}

/** Each set as {name, fields}, where `fields` has what was entered and nothing else. `name` is "" for a lone set. */
export function readSets() {
  const sets = [...container.children];
  return sets.map((set, place) => ({ name: sets.length > 1 ? letter(place) : "", fields: readFields(set) }));
}

function readFields(set) {
  const entries = [...set.querySelectorAll("[data-kind]")].map((input) => [input.name, readers[input.dataset.kind](input)]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
}

/** Leaves `max_tokens` and the stops alone: a preset says how tokens are drawn. */
function fill(set, values) {
  const drawn = new Set(setup.presets.flatMap((preset) => Object.keys(preset.values)));
  for (const name of drawn) set.querySelector(`[name="${name}"]`).value = values[name] ?? "";
}

/** `changed` is called when sets come or go, or a preset was chosen. */
export function startParameters(changed) {
  container.addEventListener("change", (event) => {
    if (!event.target.matches(".preset")) return;
    const preset = setup.presets.find(({ key }) => key === event.target.value);
    if (preset) fill(event.target.closest(".parameter-set"), preset.values);
    changed();
  });
  container.addEventListener("input", (event) => {
    const set = event.target.closest(".parameter-set");
    if (setup.presets.some(({ values }) => event.target.name in values)) set.querySelector(".preset").value = "";
  });
  container.addEventListener("click", (event) => {
    if (!event.target.matches(".remove-set")) return;
    event.target.closest(".parameter-set").remove();
    arrange();
    changed();
    addButton.focus();
  });
  addButton.addEventListener("click", () => {
    const last = container.lastElementChild;
    const copy = last.cloneNode(true);
    // A clone has the attributes, and not what was chosen or typed into areas since.
    const typed = [...last.querySelectorAll("select, textarea")];
    [...copy.querySelectorAll("select, textarea")].forEach((input, place) => (input.value = typed[place].value));
    container.append(copy);
    arrange();
    changed();
    copy.querySelector(".preset").focus();
  });
}

function arrange() {
  const sets = [...container.children];
  sets.forEach((set, place) => {
    const name = sets.length > 1 ? text("set", { name: letter(place) }) : setup.texts.parameters;
    for (const label of set.querySelectorAll(".set-name")) label.textContent = name;
    set.querySelector(".remove-set").hidden = sets.length === 1;
  });
  addButton.disabled = sets.length >= setup.mostSets;
}

const letter = (place) => String.fromCharCode("A".charCodeAt(0) + place);
