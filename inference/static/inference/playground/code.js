// A request as a command, and as a program of the standard library. Nothing here touches the page.

export function asCurl({ path, body }, origin, needsKey) {
  const lines = [
    `curl --no-buffer ${origin}${path}`,
    `-H 'Content-Type: application/json'`,
    ...(needsKey ? [`-H "Authorization: Bearer $API_KEY"`] : []),
    `-d ${shellQuoted(JSON.stringify(body))}`,
  ];
  return lines.join(" \\\n  ");
}

export function asPython({ path, body }, origin, needsKey) {
  const key = needsKey ? `, "Authorization": f"Bearer {os.environ['API_KEY']}"` : "";
  return `import json
${needsKey ? "import os\n" : ""}from urllib.request import Request, urlopen

body = ${pythonLiteral(body)}
headers = {"Content-Type": "application/json"${key}}
request = Request("${origin}${path}", json.dumps(body).encode(), headers)
with urlopen(request) as response:
    for line in response:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                print(choice.get("text") or choice.get("delta", {}).get("content") or "", end="", flush=True)
`;
}

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** JSON is Python but for three names, and JSON's strings are Python's. Objects get a line for each member. */
function pythonLiteral(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((item) => pythonLiteral(item, indent)).join(", ")}]`;
  const inner = `${indent}    `;
  const members = Object.entries(value).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${pythonLiteral(item, inner)},\n`);
  return `{\n${members.join("")}${indent}}`;
}
