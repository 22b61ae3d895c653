// Drives an MCP client from lines of JSON, for real_test.go: each line of standard input is {"tool", "arguments"}, each
// line of standard output what the client made of the answer. The client checks every answer against the tool's output
// schema by itself, and throws when it does not fit.
import { createInterface } from "node:readline";

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

// drive connects the client, lists the tools and then calls what it is told to, until standard input ends. call is
// (client, tool, arguments) => result, since the two SDKs spell it differently.
export async function drive(client, transport, call) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  say({ server: client.getServerVersion(), instructions: client.getInstructions(), tools });
  for await (const line of createInterface({ input: process.stdin })) {
    const { tool, arguments: args } = JSON.parse(line);
    try {
      say({ result: await call(client, tool, args) });
    } catch (error) {
      say({ thrown: String(error?.message ?? error) });
    }
  }
  await client.close();
}

// target reads the command line: "http URL", with the token in DURWARD_TOKEN, or "stdio COMMAND ARGUMENTS…".
export function target() {
  const [kind, first, ...rest] = process.argv.slice(2);
  switch (kind) {
    case "http":
      return { url: new URL(first), requestInit: { headers: { Authorization: `Bearer ${process.env.DURWARD_TOKEN}` } } };
    case "stdio":
      return { command: first, args: rest };
    default:
      throw new Error("usage: http URL | stdio COMMAND ARGUMENTS…");
  }
}
