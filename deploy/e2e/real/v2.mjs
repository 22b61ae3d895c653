// The TypeScript SDK of the 2026 era: @modelcontextprotocol/client. DURWARD_ERA is "legacy" (its default), "auto" or "pin".
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { drive, target } from "./drive.mjs";

const { url, requestInit, command, args } = target();
const transport = url ? new StreamableHTTPClientTransport(url, { requestInit }) : new StdioClientTransport({ command, args });
const mode = { legacy: "legacy", auto: "auto", pin: { pin: "2026-07-28" } }[process.env.DURWARD_ERA];
await drive(new Client({ name: "typescript-v2", version: "1" }, { versionNegotiation: { mode } }), transport, {
  call: (client, params, options) => client.callTool(params, options),
  subscribe: (client, uri) =>
    client.getProtocolEra() === "modern" ? client.listen({ resourceSubscriptions: [uri] }) : client.subscribeResource({ uri }),
  onUpdated: (client, tell) => client.setNotificationHandler("notifications/resources/updated", ({ params }) => tell(params.uri)),
  revision: (client) => client.getNegotiatedProtocolVersion(),
});
