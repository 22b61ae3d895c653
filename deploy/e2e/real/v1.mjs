// The TypeScript SDK of the 2025 era: @modelcontextprotocol/sdk.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { drive, target } from "./drive.mjs";

const { url, requestInit, command, args } = target();
const transport = url ? new StreamableHTTPClientTransport(url, { requestInit }) : new StdioClientTransport({ command, args });
await drive(new Client({ name: "typescript-v1", version: "1" }), transport, (client, name, input) =>
  client.callTool({ name, arguments: input }),
);
