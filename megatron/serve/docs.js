"use strict";

// The description, without the document.

// The part of the description that a {"$ref": "#/a/b"} names; any other value itself.
function resolved(description, value) {
  while (value?.$ref) {
    value = value.$ref.slice(2).split("/").reduce((part, name) => part[name.replace(/~1/g, "/").replace(/~0/g, "~")], description);
  }
  return value;
}

// [{method, path, names, operation}] in the order of the description; `names` are other paths of the same operation.
function operationsOf(description) {
  const others = Object.entries(description.paths).filter(([, item]) => item.$ref);
  return Object.entries(description.paths).filter(([, item]) => !item.$ref).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => ({method: method.toUpperCase(), path, operation,
      names: others.filter(([, other]) => resolved(description, other) === item).map(([name]) => name)})));
}

// [{name, type, about}] of the properties of a schema, also of the parts of "allOf".
function fieldsOf(description, schema) {
  const whole = resolved(description, schema) ?? {};
  const own = Object.entries(whole.properties ?? {}).map(([name, value]) => {
    const field = resolved(description, value);
    const rules = [];
    if (whole.required?.includes(name)) rules.push("required");
    if (field.enum) rules.push(field.enum.map(one => JSON.stringify(one)).join(" or "));
    if (field.minimum !== undefined) rules.push(`at least ${field.minimum}`);
    if (field.exclusiveMinimum !== undefined) rules.push(`above ${field.exclusiveMinimum}`);
    if (field.maximum !== undefined) rules.push(`at most ${field.maximum}`);
    if (field.maxItems !== undefined) rules.push(`at most ${field.maxItems} elements`);
    if (field.default !== undefined) rules.push(`default ${JSON.stringify(field.default)}`);
    return {name, type: [field.type ?? []].flat().join(" or "), about: [rules.join(", "), field.description].filter(Boolean).join(". ")};
  });
  return own.concat((whole.allOf ?? []).flatMap(part => fieldsOf(description, part)));
}

// The document.

function show(description) {
  const $ = id => document.getElementById(id);
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };

  function table(fields) {
    const scroll = element("div", undefined, "scroll");
    const rows = element("table");
    for (const {name, type, about} of fields) {
      const row = element("tr");
      const head = element("th");
      head.scope = "row";
      head.append(element("code", name));
      row.append(head, element("td", type, "weak"), element("td", about));
      rows.append(row);
    }
    scroll.append(rows);
    return scroll;
  }

  // The request as it would be sent, and a button that sends it.
  function trial({method, path}, example) {
    const all = [];
    const body = element("textarea");
    if (example) {
      body.value = JSON.stringify(example, null, 2);
      body.rows = body.value.split("\n").length;
      body.setAttribute("aria-label", "Body of the request");
      all.push(body);
    }
    const send = element("button", "Send");
    send.type = "button";
    const answer = element("pre");
    answer.setAttribute("role", "status");
    answer.hidden = true;
    send.addEventListener("click", async () => {
      answer.hidden = false;
      answer.textContent = "...";
      try {
        const key = $("key").value;
        const response = await fetch(path.slice(1), {method, body: example ? body.value : undefined,
          headers: {...(example && {"Content-Type": "application/json"}), ...(key && {Authorization: "Bearer " + key})}});
        const text = await response.text();
        let shown = text;
        try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* it is no JSON */ }
        answer.textContent = `${response.status}\n${shown.slice(0, 100000)}`;
      } catch (error) {
        answer.textContent = error.message;
      }
    });
    return [...all, send, answer];
  }

  function operation(one) {
    const {method, path, names, operation: own} = one;
    const details = element("details");
    const head = element("summary");
    head.append(element("code", method, "method"), element("code", path), element("span", own.summary, "weak"));
    details.append(head);
    if (names.length) details.append(element("p", `Also ${names.join(", ")}`, "weak"));
    if (own.description) details.append(element("p", own.description));
    const body = own.requestBody?.content["application/json"];
    if (body) details.append(element("h3", "Body"), table(fieldsOf(description, body.schema)));
    details.append(element("h3", "Responses"), table(Object.entries(own.responses).map(([status, value]) => {
      const response = resolved(description, value);
      return {name: status, type: Object.keys(response.content ?? {}).join(", "), about: response.description};
    })));
    for (const value of Object.values(own.responses)) {
      const fields = fieldsOf(description, resolved(description, value).content?.["application/json"]?.schema);
      if (fields.length) details.append(element("h3", "Fields of the response"), table(fields));
      break;
    }
    if (body || method === "GET" && !own.responses["200"].content?.["text/html"]) {
      details.append(element("h3", "Try it"), ...trial(one, body?.example));
    }
    details.append(element("p"));
    return details;
  }

  document.title = $("title").textContent = `${description.info.title} ${description.info.version}`;
  $("about").textContent = description.info.description;
  const all = operationsOf(description);
  for (const tag of description.tags) {
    $("paths").append(element("h2", tag.description), ...all.filter(one => one.operation.tags.includes(tag.name)).map(operation));
  }
}

if (typeof document !== "undefined") {
  fetch("openapi.json").then(response => response.json()).then(show).catch(error => {
    document.getElementById("about").textContent = "no description: " + error.message;
  });
}
