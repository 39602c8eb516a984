-- The first schema. Every table begins with the family root, so that a batch over a family stays on one shard of a distributed database.
-- What a column may decide is listed in `sealed.rs`, and a test compares that list with this schema.

CREATE TABLE meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    store_id text NOT NULL,
    -- Added to transaction ids: positions must rise also after a dump is restored into a server with lower transaction ids.
    feed_base bigint NOT NULL DEFAULT 0
);

CREATE SEQUENCE thread_numbers;

CREATE TABLE owners (
    owner text PRIMARY KEY,
    host text NOT NULL,
    -- The last moment at which it was alive, and its seal.
    beat text,
    mark bytea,
    alive_until timestamptz NOT NULL
);

CREATE TABLE threads (
    root text NOT NULL,
    thread text NOT NULL,
    number bigint NOT NULL,
    head text NOT NULL,
    hash bytea NOT NULL,
    manifest text NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    updated_at bigint NOT NULL,
    posted text NOT NULL,
    consumed text NOT NULL,
    mark bytea NOT NULL,
    -- For finding threads; the manifest decides.
    version bigint NOT NULL,
    agent text NOT NULL,
    directive text,
    status text NOT NULL,
    parent text,
    chain text NOT NULL,
    -- In lower case.
    title text,
    hex text,
    imported boolean NOT NULL DEFAULT false,
    PRIMARY KEY (root, thread),
    UNIQUE (thread)
);
CREATE INDEX threads_number ON threads (number);
CREATE INDEX threads_owner ON threads (owner) WHERE owner IS NOT NULL;
CREATE INDEX threads_parent ON threads (parent) WHERE parent IS NOT NULL;
CREATE INDEX threads_chain ON threads (chain);
CREATE INDEX threads_prefix ON threads (thread text_pattern_ops);
CREATE INDEX threads_hex ON threads (hex text_pattern_ops);

CREATE TABLE log (
    root text NOT NULL,
    thread text NOT NULL,
    version bigint NOT NULL,
    first_byte bigint NOT NULL,
    first_line bigint NOT NULL,
    lines bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (root, thread, first_byte)
);
CREATE INDEX log_lines ON log (root, thread, first_line);
-- Signed bytes hardly compress, and decompressing them would cost every reader.
ALTER TABLE log ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE messages (
    root text NOT NULL,
    thread text NOT NULL,
    message text NOT NULL,
    digest bytea NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (root, thread, message)
);

CREATE TABLE runs (
    root text NOT NULL,
    thread text NOT NULL,
    run text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    body text NOT NULL,
    updated_at bigint NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (root, thread, run)
);

CREATE TABLE keys (
    root text NOT NULL,
    key text NOT NULL,
    request bytea NOT NULL,
    answer text NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (root, key)
);
CREATE INDEX keys_key ON keys (key);

CREATE TABLE feed (
    root text NOT NULL,
    position bigint NOT NULL,
    thread text NOT NULL,
    version bigint NOT NULL,
    first_line bigint NOT NULL,
    lines bigint NOT NULL,
    PRIMARY KEY (root, position)
);
CREATE INDEX feed_position ON feed (position);
CREATE INDEX feed_thread ON feed (root, thread);

CREATE TABLE tombstones (
    root text NOT NULL,
    thread text NOT NULL,
    document text NOT NULL,
    PRIMARY KEY (root, thread)
);
CREATE INDEX tombstones_thread ON tombstones (thread);

CREATE TABLE accounts (
    root text NOT NULL,
    account text NOT NULL,
    parent text,
    body text NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (root, account)
);
CREATE INDEX accounts_account ON accounts (account);
CREATE INDEX accounts_parent ON accounts (parent) WHERE parent IS NOT NULL;

CREATE TABLE reservations (
    root text NOT NULL,
    account text NOT NULL,
    reservation text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (root, account, reservation)
);

CREATE TABLE requests (
    root text NOT NULL,
    chain text NOT NULL,
    number bigint NOT NULL,
    thread text NOT NULL,
    request text NOT NULL,
    holds boolean NOT NULL,
    posted_at bigint NOT NULL,
    body text NOT NULL,
    mark bytea NOT NULL,
    arrival bigint NOT NULL,
    PRIMARY KEY (root, chain, number),
    UNIQUE (root, thread, request)
);
CREATE INDEX requests_arrival ON requests (arrival);
CREATE INDEX requests_chain ON requests (chain, number);

-- One row for each chain that was posted to: which numbers were posted.
CREATE TABLE inboxes (
    root text NOT NULL,
    chain text NOT NULL,
    posted text NOT NULL,
    mark bytea NOT NULL,
    arrival bigint NOT NULL,
    PRIMARY KEY (root, chain)
);
CREATE INDEX inboxes_arrival ON inboxes (arrival);
CREATE INDEX inboxes_chain ON inboxes (chain);

CREATE TABLE answers (
    root text NOT NULL,
    chain text NOT NULL,
    request text NOT NULL,
    thread text NOT NULL,
    version bigint NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (root, chain, request)
);
CREATE INDEX answers_chain ON answers (chain, request);

-- The root is empty for a thread that is not created yet.
CREATE TABLE blobs (
    root text NOT NULL,
    thread text NOT NULL,
    name bytea NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (root, thread, name)
);

CREATE TABLE erasures (
    root text NOT NULL,
    thread text NOT NULL,
    blob bytea NOT NULL,
    -- As JSON: a text may have a character that the server refuses.
    reason text NOT NULL,
    erased_at bigint NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (root, thread, blob)
);

-- Signed documents beside a log: capabilities, the newest snapshot, older snapshots and archived ones, the keys of an imported thread, pages.
CREATE TABLE documents (
    root text NOT NULL,
    thread text NOT NULL,
    folder text NOT NULL,
    name text NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (root, thread, folder, name)
);
CREATE INDEX documents_name ON documents (folder, name);

CREATE TABLE knowledge (
    id text PRIMARY KEY,
    document text NOT NULL
);

CREATE TABLE effects (
    effect text PRIMARY KEY,
    state text NOT NULL
);

CREATE TABLE usage_records (
    root text NOT NULL,
    thread text NOT NULL,
    version bigint NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    record text NOT NULL,
    PRIMARY KEY (root, thread, version)
);

CREATE TABLE passages (
    root text NOT NULL,
    thread text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    version bigint NOT NULL,
    line bigint NOT NULL,
    blob bytea,
    first_byte bigint NOT NULL,
    bytes bigint NOT NULL,
    digest bigint NOT NULL,
    written_at bigint NOT NULL,
    words tsvector NOT NULL,
    lower text NOT NULL,
    embedder text,
    vector bytea,
    PRIMARY KEY (root, thread, number)
);
CREATE INDEX passages_words ON passages USING gin (words);
CREATE INDEX passages_unembedded ON passages (number) WHERE embedder IS NULL;

-- What was not indexed of a thread.
CREATE TABLE unsearched (
    root text NOT NULL,
    thread text NOT NULL,
    counts text NOT NULL,
    PRIMARY KEY (root, thread)
);

-- The position of this transaction in the feed. Transaction ids rise in the order in which transactions began to write, and a reader stops
-- below the oldest one that still runs: no commit appears behind a cursor.
CREATE FUNCTION this_position() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (pg_current_xact_id()::text::bigint << 12) + (SELECT feed_base FROM meta) $$;

-- Positions below this one are complete.
CREATE FUNCTION horizon() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 12) + (SELECT feed_base FROM meta) $$;

-- Whether an owner is alive, by the database's clock.
CREATE FUNCTION is_alive(who text) RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT EXISTS (SELECT 1 FROM owners WHERE owner = who AND alive_until > clock_timestamp()) $$;

-- Writes a prepared batch, or nothing: every row that it was prepared from must still have the seal that was seen.
-- SV001: a row changed since; the caller prepares the batch again. SV002: a request is not pending.
CREATE FUNCTION commit_batch(batch jsonb, logs bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t jsonb;
    x jsonb;
    changed bigint;
    place bigint;
BEGIN
    IF jsonb_typeof(batch->'key') = 'object' THEN
        x := batch->'key';
        -- Keys are unique within a family; that another family has it is noticed here, and not while both commit at once.
        IF EXISTS (SELECT 1 FROM keys WHERE key = x->>'key') THEN
            RAISE EXCEPTION 'the key was used' USING ERRCODE = 'SV001';
        END IF;
        -- Waits for a transaction that inserts the same key.
        INSERT INTO keys (root, key, request, answer, mark)
        VALUES (x->>'root', x->>'key', decode(x->>'request', 'hex'), x->>'answer', decode(x->>'mark', 'hex'))
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN RAISE EXCEPTION 'the key was used' USING ERRCODE = 'SV001'; END IF;
    END IF;
    -- In the order of their ids: batches that cross wait for each other, and none is a victim.
    FOR t IN SELECT value FROM jsonb_array_elements(batch->'threads') AS e (value) ORDER BY value->>'thread' LOOP
        IF t->>'seen' IS NULL THEN
            IF EXISTS (SELECT 1 FROM tombstones WHERE thread = t->>'thread') THEN
                RAISE EXCEPTION 'it was deleted' USING ERRCODE = 'SV001';
            END IF;
            INSERT INTO threads (root, thread, number, head, hash, manifest, epoch, owner, updated_at, posted, consumed, mark,
                                 version, agent, directive, status, parent, chain, title, hex)
            VALUES (t->>'root', t->>'thread', (t->>'number')::bigint, t->>'head', decode(t->>'hash', 'hex'), t->>'manifest',
                    (t->>'epoch')::bigint, t->>'owner', (t->>'updated_at')::bigint, t->>'posted', t->>'consumed',
                    decode(t->>'mark', 'hex'), (t->>'version')::bigint, t->>'agent', t->>'directive', t->>'status',
                    t->>'parent', t->>'chain', t->>'title', t->>'hex')
            ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS changed = ROW_COUNT;
            UPDATE blobs SET root = t->>'root' WHERE root = '' AND thread = t->>'thread';
        ELSIF t->>'manifest' IS NULL THEN
            UPDATE threads SET head = t->>'head', hash = decode(t->>'hash', 'hex'), epoch = (t->>'epoch')::bigint,
                owner = t->>'owner', updated_at = (t->>'updated_at')::bigint, posted = t->>'posted',
                consumed = t->>'consumed', mark = decode(t->>'mark', 'hex'), version = (t->>'version')::bigint
            WHERE root = t->>'root' AND thread = t->>'thread' AND mark = decode(t->>'seen', 'hex');
            GET DIAGNOSTICS changed = ROW_COUNT;
        ELSE
            UPDATE threads SET head = t->>'head', hash = decode(t->>'hash', 'hex'), epoch = (t->>'epoch')::bigint,
                owner = t->>'owner', updated_at = (t->>'updated_at')::bigint, posted = t->>'posted',
                consumed = t->>'consumed', mark = decode(t->>'mark', 'hex'), version = (t->>'version')::bigint,
                manifest = t->>'manifest', agent = t->>'agent', directive = t->>'directive', status = t->>'status',
                title = t->>'title'
            WHERE root = t->>'root' AND thread = t->>'thread' AND mark = decode(t->>'seen', 'hex');
            GET DIAGNOSTICS changed = ROW_COUNT;
        END IF;
        IF changed = 0 THEN RAISE EXCEPTION 'a thread changed' USING ERRCODE = 'SV001'; END IF;
    END LOOP;
    FOR x IN SELECT value FROM jsonb_array_elements(batch->'accounts') AS e (value) ORDER BY value->>'account' LOOP
        IF x->>'seen' IS NULL THEN
            INSERT INTO accounts (root, account, parent, body, mark)
            VALUES (x->>'root', x->>'account', x->>'parent', x->>'body', decode(x->>'mark', 'hex'))
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE accounts SET parent = x->>'parent', body = x->>'body', mark = decode(x->>'mark', 'hex')
            WHERE root = x->>'root' AND account = x->>'account' AND mark = decode(x->>'seen', 'hex');
        END IF;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN RAISE EXCEPTION 'an account changed' USING ERRCODE = 'SV001'; END IF;
        DELETE FROM reservations WHERE root = x->>'root' AND account = x->>'account'
            AND reservation IN (SELECT value FROM jsonb_array_elements_text(x->'gone') AS e (value));
        INSERT INTO reservations (root, account, reservation, body)
        SELECT x->>'root', x->>'account', value->>0, value->>1 FROM jsonb_array_elements(x->'reservations') AS e (value)
        ON CONFLICT (root, account, reservation) DO UPDATE SET body = excluded.body;
    END LOOP;
    FOR x IN SELECT value FROM jsonb_array_elements(batch->'consumed') AS e (value) LOOP
        DELETE FROM requests WHERE root = x->>'root' AND thread = x->>'thread' AND request = x->>'request';
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN
            RAISE EXCEPTION 'not pending' USING ERRCODE = 'SV002', DETAIL = (x->>'index');
        END IF;
    END LOOP;
    FOR t IN SELECT value FROM jsonb_array_elements(batch->'threads') AS e (value) LOOP
        IF t->>'continued_as' IS NOT NULL THEN
            UPDATE requests SET thread = t->>'continued_as',
                root = COALESCE((SELECT next.root FROM threads AS next WHERE next.thread = t->>'continued_as'), root)
            WHERE root = t->>'root' AND thread = t->>'thread';
        END IF;
    END LOOP;
    IF jsonb_array_length(batch->'posted') > 0 THEN
        PERFORM put_requests(batch->'posted', batch->'inboxes');
    END IF;
    place := this_position();
    FOR t IN SELECT value FROM jsonb_array_elements(batch->'threads') AS e (value) LOOP
        INSERT INTO log (root, thread, version, first_byte, first_line, lines, bytes)
        VALUES (t->>'root', t->>'thread', (t->>'version')::bigint, (t->>'first_byte')::bigint, (t->>'first_line')::bigint,
                (t->>'lines')::bigint, logs[(t->>'index')::int + 1]);
        INSERT INTO feed (root, position, thread, version, first_line, lines)
        VALUES (t->>'root', place + (t->>'feed')::bigint, t->>'thread', (t->>'version')::bigint,
                (t->>'first_line')::bigint, (t->>'lines')::bigint);
        IF jsonb_array_length(t->'messages') > 0 THEN
            INSERT INTO messages (root, thread, message, digest, mark)
            SELECT t->>'root', t->>'thread', value->>0, decode(value->>1, 'hex'), decode(value->>2, 'hex')
            FROM jsonb_array_elements(t->'messages') AS e (value)
            ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS changed = ROW_COUNT;
            IF changed < jsonb_array_length(t->'messages') THEN
                RAISE EXCEPTION 'a message is known' USING ERRCODE = 'SV001';
            END IF;
        END IF;
        FOR x IN SELECT value FROM jsonb_array_elements(t->'runs') AS e (value) LOOP
            INSERT INTO runs (root, thread, run, body, updated_at, mark)
            VALUES (t->>'root', t->>'thread', x->>0, x->>1, (t->>'updated_at')::bigint, decode(x->>2, 'hex'))
            ON CONFLICT (root, thread, run) DO UPDATE
            SET body = excluded.body, updated_at = excluded.updated_at, mark = excluded.mark;
        END LOOP;
        IF t->>'touched' IS NOT NULL THEN
            UPDATE runs SET updated_at = (t->>'updated_at')::bigint
            WHERE root = t->>'root' AND thread = t->>'thread' AND run = t->>'touched';
        END IF;
        INSERT INTO answers (root, chain, request, thread, version, mark)
        SELECT t->>'root', t->>'chain', value->>0, t->>'thread', (t->>'version')::bigint, decode(value->>1, 'hex')
        FROM jsonb_array_elements(t->'answered') AS e (value)
        ON CONFLICT DO NOTHING;
        FOR x IN SELECT value FROM jsonb_array_elements(t->'erased') AS e (value) LOOP
            INSERT INTO erasures (root, thread, blob, reason, erased_at, mark)
            VALUES (t->>'root', t->>'thread', decode(x->>0, 'hex'), x->>1, (t->>'updated_at')::bigint, decode(x->>2, 'hex'))
            ON CONFLICT DO NOTHING;
            DELETE FROM blobs WHERE root = t->>'root' AND thread = t->>'thread' AND name = decode(x->>0, 'hex');
            DELETE FROM passages WHERE root = t->>'root' AND thread = t->>'thread' AND blob = decode(x->>0, 'hex');
        END LOOP;
    END LOOP;
END
$$;

-- Inserts requests, if the chains that they go to did not change.
CREATE FUNCTION put_requests(new_requests jsonb, boxes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    x jsonb;
    changed bigint;
    place bigint;
    n bigint := 0;
BEGIN
    FOR x IN SELECT value FROM jsonb_array_elements(new_requests) AS e (value) ORDER BY value->>'thread' LOOP
        -- Waits for a commit that continues the thread, and for one that releases its lease.
        PERFORM 1 FROM threads WHERE root = x->>'root' AND thread = x->>'thread' AND status <> 'continued' FOR SHARE;
        IF NOT FOUND THEN RAISE EXCEPTION 'the chain changed' USING ERRCODE = 'SV001'; END IF;
    END LOOP;
    place := this_position();
    FOR x IN SELECT value FROM jsonb_array_elements(boxes) AS e (value) ORDER BY value->>'chain' LOOP
        IF x->>'seen' IS NULL THEN
            INSERT INTO inboxes (root, chain, posted, mark, arrival)
            VALUES (x->>'root', x->>'chain', x->>'posted', decode(x->>'mark', 'hex'), place + jsonb_array_length(new_requests))
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE inboxes SET posted = x->>'posted', mark = decode(x->>'mark', 'hex'), arrival = place + jsonb_array_length(new_requests)
            WHERE root = x->>'root' AND chain = x->>'chain' AND mark = decode(x->>'seen', 'hex');
        END IF;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN RAISE EXCEPTION 'an inbox changed' USING ERRCODE = 'SV001'; END IF;
    END LOOP;
    FOR x IN SELECT value FROM jsonb_array_elements(new_requests) AS e (value) LOOP
        n := n + 1;
        INSERT INTO requests (root, chain, number, thread, request, holds, posted_at, body, mark, arrival)
        VALUES (x->>'root', x->>'chain', (x->>'number')::bigint, x->>'thread', x->>'request', (x->>'holds')::boolean,
                (x->>'posted_at')::bigint, x->>'body', decode(x->>'mark', 'hex'), place + n)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed = 0 THEN RAISE EXCEPTION 'an inbox changed' USING ERRCODE = 'SV001'; END IF;
    END LOOP;
END
$$;

-- Sets or clears the holder of a lease. Returns how many requests keep it from being released; none if the row changed since it was seen.
CREATE FUNCTION set_lease(family text, id text, seen bytea, holder text, new_epoch bigint, new_mark bytea, refuse_pending boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    waiting bigint := 0;
BEGIN
    PERFORM 1 FROM threads WHERE root = family AND thread = id AND mark = seen FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF refuse_pending THEN
        SELECT count(*) INTO waiting FROM requests WHERE root = family AND thread = id AND holds;
        IF waiting > 0 THEN RETURN waiting; END IF;
    END IF;
    UPDATE threads SET owner = holder, epoch = new_epoch, mark = new_mark WHERE root = family AND thread = id;
    RETURN 0;
END
$$;

-- Whether a commit under this key happened: waits for one that is in progress, and leaves nothing.
CREATE FUNCTION settle_key(family text, wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        INSERT INTO keys (root, key, request, answer, mark) VALUES (family, wanted, '', '', '');
        RAISE EXCEPTION 'free' USING ERRCODE = 'SV009';
    EXCEPTION
        WHEN unique_violation THEN RETURN true;
        WHEN SQLSTATE 'SV009' THEN RETURN false;
    END;
END
$$;

-- Removes a thread from every table.
CREATE FUNCTION bury(family text, id text, seen bytea, signed text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM threads WHERE root = family AND thread = id AND mark = seen;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM log WHERE root = family AND thread = id;
    DELETE FROM messages WHERE root = family AND thread = id;
    DELETE FROM runs WHERE root = family AND thread = id;
    DELETE FROM feed WHERE root = family AND thread = id;
    DELETE FROM requests WHERE root = family AND thread = id;
    DELETE FROM answers WHERE root = family AND thread = id;
    DELETE FROM blobs WHERE root IN (family, '') AND thread = id;
    DELETE FROM erasures WHERE root = family AND thread = id;
    DELETE FROM documents WHERE root = family AND thread = id;
    DELETE FROM passages WHERE root = family AND thread = id;
    DELETE FROM unsearched WHERE root = family AND thread = id;
    INSERT INTO tombstones (root, thread, document) VALUES (family, id, signed);
    RETURN true;
END
$$;
