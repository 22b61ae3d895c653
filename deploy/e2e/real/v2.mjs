// The TypeScript SDK of the 2026 era: @modelcontextprotocol/client. DURWARD_ERA is "legacy" (its default) or "auto".
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { drive, target } from "./drive.mjs";

const { url, requestInit, command, args } = target();
const transport = url ? new StreamableHTTPClientTransport(url, { requestInit }) : new StdioClientTransport({ command, args });
const options = process.env.DURWARD_ERA === "auto" ? { versionNegotiation: { mode: "auto" } } : {};
await drive(new Client({ name: "typescript-v2", version: "1" }, options), transport, (client, name, input) =>
  client.callTool({ name, arguments: input }),
);
