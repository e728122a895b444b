"use strict";
// Keeps the list of runs current. Without it the list is complete, and a reload brings the current state.
(() => {
  const listing = () => document.getElementById("listing");
  async function load(address) {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    return answer;
  }
  async function refresh() {
    const state = await (await load("/state.json")).json();
    if (state.listing !== listing().dataset.listing) {
      const page = new DOMParser().parseFromString(await (await load(location.href)).text(), "text/html");
      const lead = page.querySelector(".lead"), fresh = page.getElementById("listing");
      document.querySelector(".lead").replaceWith(document.adoptNode(lead));
      listing().replaceWith(document.adoptNode(fresh));
    }
    document.querySelectorAll("[data-live]").forEach((one) => {
      const now = state.live[one.dataset.live];
      if (now) one.textContent = now.text;
    });
  }
  async function again() {
    const status = document.getElementById("status");
    try {
      if (!document.hidden) await refresh();
      status.textContent = "";
    } catch {
      status.textContent = "The server does not answer: this is its last state.";
    }
    setTimeout(again, 2000);
  }
  setTimeout(again, 2000);
})();
