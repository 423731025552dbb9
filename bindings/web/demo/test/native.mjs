// What the native program finds: `kvevict demo --json`.
import { execFileSync } from "node:child_process";
import { policies } from "../policies.js";

// Returns the results of every policy that the page offers, by its text.
export function nativeResults(nTokens, seed, budget) {
  const { results } = JSON.parse(execFileSync(process.env.KVEVICT_CLI, [
    "demo", "--tokens", String(nTokens), "--seed", String(seed), "--budget", String(budget),
    "--json", ...policies.flatMap(({ text }) => ["--policy", text])],
    { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }));
  return new Map(results.map((row, i) => [policies[i].text, row]));
}
