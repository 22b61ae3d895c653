// Drives an MCP client from lines of JSON, for typescript_test.go: each line of standard input is an operation, each line of
// standard output what the client made of the answer. The client checks every answer of a tool against the tool's output
// schema by itself, and throws when it does not fit.
import { createInterface } from "node:readline";

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

// drive connects the client, lists the tools and then does what it is told to, until standard input ends. sdk says what the
// two SDKs spell differently: call, subscribe, onUpdated and revision.
export async function drive(client, transport, sdk) {
  const updates = [];
  let wake = () => {};
  sdk.onUpdated(client, (uri) => {
    updates.push(uri);
    wake();
  });
  await client.connect(transport);
  const { tools } = await client.listTools();
  say({ revision: sdk.revision(client, transport), instructions: client.getInstructions(), tools });

  const operations = {
    // A call, or several at once, with the texts of the progress that was reported; cut off by the client after a while.
    async call({ tool, arguments: args, times = 1, cutAfterMs }) {
      const progress = [];
      const signal = cutAfterMs ? AbortSignal.timeout(cutAfterMs) : undefined;
      const once = () => sdk.call(client, { name: tool, arguments: args }, { signal, onprogress: (p) => progress.push(p.message) });
      return { results: await Promise.all(Array.from({ length: times }, once)), progress };
    },
    async list() {
      const { resources } = await client.listResources();
      const { resourceTemplates } = await client.listResourceTemplates();
      return { resources: resources.map((r) => r.uri), templates: resourceTemplates.map((t) => t.uriTemplate) };
    },
    async read({ uri }) {
      const { contents } = await client.readResource({ uri });
      return { text: contents.map((c) => c.text).join("") };
    },
    async complete({ uri, name, value }) {
      const { completion } = await client.complete({ ref: { type: "ref/resource", uri }, argument: { name, value } });
      return { values: completion.values };
    },
    async subscribe({ uri }) {
      await sdk.subscribe(client, uri);
      return {};
    },
    async updated() {
      if (updates.length === 0) {
        await new Promise((resolve, reject) => {
          wake = resolve;
          setTimeout(() => reject(new Error("no update came")), 20_000);
        });
      }
      return { uri: updates.shift() };
    },
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: operation, ...about } = JSON.parse(line);
    try {
      say(await operations[operation](about));
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
