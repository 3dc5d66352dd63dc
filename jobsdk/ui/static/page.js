// The page of `jobsdk ui`.
import {list} from "./list.js";
import {Page} from "./run.js";

const match = /^\/runs\/([^/]+)$/.exec(location.pathname);
if (match) new Page(decodeURIComponent(match[1])); else list();
