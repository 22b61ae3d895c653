// A service that fetches a gated model by the hub's own client, with the token in the file that HF_TOKEN_PATH names, and then serves.
//   node hub.mjs HUB_URL FILE PORT
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { downloadFile } from '@huggingface/hub';

const [hubUrl, file, port] = process.argv.slice(2);
const accessToken = readFileSync(process.env.HF_TOKEN_PATH, 'utf8');
const model = await downloadFile({ repo: 'org/gated', path: 'config.json', accessToken, hubUrl });
writeFileSync(`${file}.new`, await model.text());
renameSync(`${file}.new`, file);
createServer((_, answer) => answer.end('ok')).listen(Number(port), '127.0.0.1');
