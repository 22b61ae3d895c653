// The TypeScript SDK of the 2025 era: @modelcontextprotocol/sdk.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import { drive, target } from "./drive.mjs";

const { url, requestInit, command, args } = target();
const transport = url ? new StreamableHTTPClientTransport(url, { requestInit }) : new StdioClientTransport({ command, args });
// Over standard input the client tells nobody which revision it agreed on but its transport.
transport.setProtocolVersion ??= (version) => (transport.agreed = version);
await drive(new Client({ name: "typescript-v1", version: "1" }), transport, {
  call: (client, params, options) => client.callTool(params, undefined, options),
  subscribe: (client, uri) => client.subscribeResource({ uri }),
  onUpdated: (client, tell) => client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => tell(params.uri)),
  revision: () => transport.protocolVersion ?? transport.agreed,
});
