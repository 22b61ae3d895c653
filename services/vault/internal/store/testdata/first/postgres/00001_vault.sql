-- +goose Up
-- As in SQLite's migrations; see there.
CREATE TABLE operations (
    operation_id     text    PRIMARY KEY,
    state            bigint  NOT NULL,
    principal        text    NOT NULL,
    session          text    NOT NULL,
    channel          bigint  NOT NULL,
    client_name      text    NOT NULL,
    key_bound        boolean NOT NULL,
    tool_name        text    NOT NULL,
    tool_source      text    NOT NULL,
    tool_digest      bytea   NOT NULL,
    tier             bigint  NOT NULL,
    arguments        bytea   NOT NULL,
    arguments_digest bytea   NOT NULL,
    agent_reason     text    NOT NULL,
    audience         text    NOT NULL,
    epoch            bigint  NOT NULL,
    policy_digest    bytea   NOT NULL,
    request_id       text    NOT NULL,
    asked_at         bigint  NOT NULL,
    expires_at       bigint  NOT NULL,
    decided_at       bigint  NOT NULL,
    decided_by       text    NOT NULL,
    decision_reason  text    NOT NULL,
    subject_digest   bytea   NOT NULL,
    statement        bytea   NOT NULL,
    signature        bytea   NOT NULL,
    redeemed_at      bigint  NOT NULL,
    settled_at       bigint  NOT NULL,
    settled_ok       boolean NOT NULL,
    joined           bigint  NOT NULL,
    authority        text    NOT NULL,
    dangerous        boolean NOT NULL,
    policy_tier      bigint  NOT NULL,
    rule             text    NOT NULL,
    agent            text    NOT NULL,
    seal             bytea   NOT NULL
);
CREATE INDEX operations_by_state ON operations (state, asked_at);

CREATE TABLE statements (
    digest       bytea  PRIMARY KEY,
    operation_id text   NOT NULL,
    kind         text   NOT NULL,
    operator     text   NOT NULL,
    used_at      bigint NOT NULL,
    seal         bytea  NOT NULL
);

CREATE TABLE spent (
    operation_id text   NOT NULL,
    use          bigint NOT NULL,
    grant_id     text   NOT NULL,
    audience     text   NOT NULL,
    redeemed_at  bigint NOT NULL,
    seal         bytea  NOT NULL,
    PRIMARY KEY (operation_id, use)
);
CREATE INDEX spent_by_time ON spent (redeemed_at);

CREATE TABLE standing (
    standing_id text   PRIMARY KEY,
    digest      bytea  NOT NULL,
    kind        text   NOT NULL,
    operator    text   NOT NULL,
    principal   text   NOT NULL,
    session     text   NOT NULL,
    granted_at  bigint NOT NULL,
    statement   bytea  NOT NULL,
    signature   bytea  NOT NULL,
    used        bigint NOT NULL,
    ended_at    bigint NOT NULL,
    ended_why   text   NOT NULL,
    seal        bytea  NOT NULL
);
CREATE INDEX standing_by_end ON standing (ended_at);

CREATE TABLE control (
    id         bigint  PRIMARY KEY CHECK (id = 1),
    epoch      bigint  NOT NULL,
    halted     boolean NOT NULL,
    reason     text    NOT NULL,
    changed_by text    NOT NULL,
    changed_at bigint  NOT NULL,
    seal       bytea   NOT NULL
);
INSERT INTO control VALUES (1, 1, false, '', '', 0, '');

CREATE TABLE usage (
    client  text   NOT NULL,
    tool    text   NOT NULL,
    day     text   NOT NULL,
    calls   bigint NOT NULL,
    last_at bigint NOT NULL,
    PRIMARY KEY (client, tool, day)
);

CREATE TABLE configuration (
    file       text   PRIMARY KEY,
    layer      text   NOT NULL,
    digest     text   NOT NULL,
    changed_at bigint NOT NULL
);

-- Keyed digests of each table, over these columns, and one of the key's own, by which a vault with another key knows that it has none.
CREATE TABLE seals (
    name     text   PRIMARY KEY,
    columns  text   NOT NULL,
    rows     bigint NOT NULL,
    revision bigint NOT NULL,
    sum      bytea  NOT NULL,
    seal     bytea  NOT NULL
);

-- The process that writes is the one whose epoch this is. closed: why no process may.
CREATE TABLE sequencer (
    id     bigint PRIMARY KEY CHECK (id = 1),
    epoch  bigint NOT NULL,
    closed text   NOT NULL
);
INSERT INTO sequencer VALUES (1, 0, '');

-- What the first vault on PostgreSQL wrote, with its seals: a use of an approved operation that was redeemed, by a statement of ada's, and a halt.
DELETE FROM control;
INSERT INTO operations VALUES
    ('OLDOPERATION', 4, 'agent', 's-1', 3, 'agent', true, 'start_service', 'executor', '\x01', 2, '\x7b7d', '\x02', 'because', 'spiffe://durward.local/executor/local', 7, '\x03', 'r-1', 1700000000000000000, 1700001800000000000, 1700000060000000000, 'ada', '', '\x', '\x', '\x', 1700000061000000000, 1700000062000000000, true, 0, '', false, 0, '', '', '\x58d6df933cb49f3cddeb679e05550ca3f80d3b07bb64d5ec96138c6457a89c87');
INSERT INTO statements VALUES
    ('\x0a0b', 'OLDOPERATION', 'approve', 'ada', 1700000060000000000, '\xd974fc64f5fb259a10e4eba22facb6ed68af510901cc80783a09c7da0b8639a9');
INSERT INTO spent VALUES
    ('OLDOPERATION', 1, 'g-1', 'spiffe://durward.local/executor/local', 1700000061000000000, '\xc677b08b38997ff52eae33cbe3b23a85d4635001d48b29b1334c48607c1d81a8');
INSERT INTO control VALUES
    (1, 7, true, 'looks strange', 'ada', 1700000100000000000, '\x3f82c6a5bb4528f7e2e156ae66f3500d62971e1b42a11a5986e65265c641cb81');
INSERT INTO seals VALUES
    ('standing', 'standing_id digest kind operator principal session granted_at statement signature used ended_at ended_why', 0, 1, '\x0000000000000000000000000000000000000000000000000000000000000000', '\x7571fc3b56035c5465b74245475eaba48e093ed3a65ac049c3f74d24a6d16716'),
    ('key', '', 0, 0, '\x', '\x3cc0b131a0eb4dd1e2c0ab230f1c241d30d41cd0fb9191940b8112ff4e8e26a7'),
    ('statements', 'digest operation_id kind operator used_at', 1, 2, '\xd974fc64f5fb259a10e4eba22facb6ed68af510901cc80783a09c7da0b8639a9', '\xff3cc2212809830052f44334ae69a252df1efce8517b174a24f06fb72561dbcc'),
    ('spent', 'operation_id use grant_id audience redeemed_at', 1, 2, '\xc677b08b38997ff52eae33cbe3b23a85d4635001d48b29b1334c48607c1d81a8', '\xaf2427ac3abd8f497ce6b2d354649b772dbe814f4adcc1e586dc928b6a986ee5'),
    ('operations', 'operation_id state principal session channel client_name key_bound tool_name tool_source tool_digest tier arguments arguments_digest agent_reason audience epoch policy_digest request_id asked_at expires_at decided_at decided_by decision_reason subject_digest statement signature redeemed_at settled_at settled_ok joined authority dangerous policy_tier rule agent', 1, 5, '\x58d6df933cb49f3cddeb679e05550ca3f80d3b07bb64d5ec96138c6457a89c87', '\x7762de44b23ccc4744f8c4a222c5b26eedf324b2d3e6987e2bbf472f635e68a5'),
    ('control', 'id epoch halted reason changed_by changed_at', 1, 2, '\x3f82c6a5bb4528f7e2e156ae66f3500d62971e1b42a11a5986e65265c641cb81', '\xe98f19e2effcafd6cb497d700c15df8b3f59078c0fb8981a263849abba206f3d');
