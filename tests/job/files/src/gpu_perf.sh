#!/bin/bash
echo perf
