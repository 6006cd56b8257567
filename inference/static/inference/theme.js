// Light, dark, or as the system has it. The choice is kept in this browser alone.
"use strict";

(() => {
  const KEY = "theme";
  const root = document.documentElement;

  function apply(choice) {
    if (choice === "auto") delete root.dataset.theme;
    else root.dataset.theme = choice;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice));
    }
  }

  const chosen = () => localStorage.getItem(KEY) ?? "auto";

  apply(chosen()); // the colours, before anything is drawn
  document.addEventListener("DOMContentLoaded", () => {
    apply(chosen()); // the buttons, which are there now
    document.getElementById("theme-switch").addEventListener("click", (event) => {
      const choice = event.target.closest("[data-theme-choice]")?.dataset.themeChoice;
      if (!choice) return;
      localStorage.setItem(KEY, choice);
      apply(choice);
    });
  });
})();
